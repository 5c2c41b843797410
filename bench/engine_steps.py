"""Decode steps per second of the whole engine, by batch, and what the host waits for.

    python bench/engine_steps.py PKG --weights DIR [--device cuda] [--batches 1,64,256] [--steps 100]
        [--context 512] [--temperature 0.8] [--out steps.json] [--trace]

``host_us`` is what the engine's Python takes per step (scheduling, records, book-keeping, launches):
the step's time less what it waited for tokens. With ``--trace`` on a GPU, steps are run under the
profiler and every call of the CUDA runtime and driver is counted (synchronisations, copies, graphs).
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from k3compiler.check.rates import describe_device
from k3compiler.runtime.engine import Engine, RequestKeys
from k3compiler.runtime.sampling import SamplingParams

KEYS = RequestKeys((None, None), ())
TRACED_STEPS = 130  # every row turns a page and passes a unit twice


class WaitTimer:
    """Wraps ``Executor.start_decode`` and adds up the time that its results are waited for."""

    def __init__(self, start: Callable[..., Callable[[], Any]]) -> None:
        self._start, self.seconds = start, 0.0

    def __call__(self, *args: Any, **options: Any) -> Callable[[], Any]:
        results = self._start(*args, **options)

        def timed() -> Any:
            begin = perf_counter()
            found = results()
            self.seconds += perf_counter() - begin
            return found

        return timed


@dataclass(frozen=True, slots=True)
class Load:
    """What every request of a batch is: tokens of its prompt, and how its tokens are chosen."""

    context: int
    temperature: float

    def params(self, tokens: int) -> SamplingParams:
        heat = self.temperature
        return SamplingParams(tokens, heat, top_p=0.95, seed=1, ignore_eos=True)


def decoding(engine: Engine, batch: int, load: Load, tokens: int) -> None:
    """Fill the engine with ``batch`` requests and run their prompts."""
    rng = np.random.default_rng(1)
    params = load.params(tokens)
    for _ in range(batch):
        prompt = rng.integers(0, engine.executor.vocab_size, load.context).tolist()
        engine._submit(engine._request(prompt, params), KEYS, 0)
    while engine.metrics()["num_requests_waiting"] or engine.scheduler._prefilling:
        engine.step()


def finish(engine: Engine) -> None:
    while engine.scheduler.has_work:
        engine.step()


def measure(engine: Engine, batch: int, load: Load, steps: int) -> dict[str, Any]:
    """Median step time while every request decodes."""
    decoding(engine, batch, load, steps + 40)
    for _ in range(8):
        engine.step()
    timer = WaitTimer(engine.executor.start_decode)
    engine.executor.start_decode = timer  # type: ignore[method-assign]
    engine.step()  # the launch that is there already is not timed
    times: list[float] = []
    host: list[float] = []
    for _ in range(steps):
        before, begin = timer.seconds, perf_counter()
        engine.step()
        times.append(perf_counter() - begin)
        host.append(times[-1] - (timer.seconds - before))
    del engine.executor.start_decode
    finish(engine)
    median = float(np.median(times))
    return {
        "batch": batch,
        "context_tokens": load.context,
        "temperature": load.temperature,
        "step_us": round(median * 1e6, 1),
        "mean_step_us": round(float(np.mean(times)) * 1e6, 1),
        "host_us": round(float(np.median(host)) * 1e6, 1),
        "steps_per_s": round(1 / median, 1),
        "tokens_per_s": round(batch / median, 1),
    }


def trace(engine: Engine, batch: int, load: Load) -> dict[str, Any]:
    """Calls of the CUDA runtime and driver, and what ran on the GPU, in steady decode steps."""
    from torch import profiler

    decoding(engine, batch, load, TRACED_STEPS + 40)
    for _ in range(8):
        engine.step()
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    ) as found:
        for _ in range(TRACED_STEPS):
            engine.step()
    path = Path("trace.json")
    found.export_chrome_trace(str(path))
    events = _between_launches(json.loads(path.read_text())["traceEvents"])
    path.unlink()
    finish(engine)
    calls = Counter(e["name"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver"))
    return {
        "batch": batch,
        "steps": TRACED_STEPS,
        "calls": dict(sorted(calls.items())),
        "synchronisations": sum(n for name, n in calls.items() if is_synchronous(name)),
        "copies": dict(Counter(e["name"] for e in events if e.get("cat") == "gpu_memcpy")),
        "metadata_us": _median_us(events, "decode_metadata"),
    }


def _between_launches(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those from the first graph launch to the last: the profiler itself waits when it stops."""
    launches = [e["ts"] for e in events if e.get("name") == "cudaGraphLaunch"]
    return [e for e in events if min(launches) <= e.get("ts", 0) <= max(launches)]


def is_synchronous(call: str) -> bool:
    """Whether a call makes the host wait for the device."""
    return "Synchronize" in call or ("Memcpy" in call and "Async" not in call)


def _median_us(events: list[dict[str, Any]], kernel: str) -> float | None:
    times = [e["dur"] for e in events if e.get("cat") == "kernel" and kernel in e["name"]]
    return round(float(np.median(times)), 2) if times else None


def facts(engine: Engine) -> dict[str, Any]:
    """What was measured, and on what."""
    return {
        "date": datetime.date.today().isoformat(),
        "package": engine.package.manifest.digest,
        **describe_device(engine.executor.device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--device")
    parser.add_argument("--batches", default="1,64,256")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    batches = [int(b) for b in options.batches.split(",")]
    engine = Engine(
        options.package,
        options.weights,
        device=options.device,
        max_context=options.context + max(options.steps, TRACED_STEPS) + 64,
        max_sequences=max(batches),
        prefill_tokens=4096,
    )
    load = Load(options.context, options.temperature)
    rows = [measure(engine, batch, load, options.steps) for batch in batches]
    traces = [trace(engine, batch, load) for batch in batches] if options.trace else []
    for row in [*rows, *traces]:
        print(row)
    if options.out is not None:
        found = facts(engine) | {"rows": rows, "traces": traces}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    engine.close()


if __name__ == "__main__":
    main()
