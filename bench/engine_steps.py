"""Decode steps per second of the whole engine, by batch.

    python bench/engine_steps.py PKG --weights DIR [--device cuda] [--batches 1,64,256] [--steps 100]
        [--context 512] [--trace steps.json]

``host_us`` is what the engine's Python takes per step beside the launch (scheduling, tables,
book-keeping): the step's time less that of ``Executor.decode_rows``. With ``--trace`` on a GPU, a
profiler trace of a few steps at the first batch is written (copies, kernels, synchronisations).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from k3compiler.runtime.engine import Engine
from k3compiler.runtime.sampling import SamplingParams


class Timer:
    """Wraps a function and adds up its time."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.seconds = inner, 0.0

    def __call__(self, *args: Any, **options: Any) -> Any:
        begin = perf_counter()
        found = self._inner(*args, **options)
        self.seconds += perf_counter() - begin
        return found


def decoding(engine: Engine, batch: int, context: int, tokens: int) -> None:
    """Fill the engine with ``batch`` requests and run their prompts."""
    rng = np.random.default_rng(1)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    for _ in range(batch):
        prompt = rng.integers(0, engine.executor.vocab_size, context).tolist()
        engine._submit(engine._request(prompt, params))
    while engine.metrics()["num_requests_waiting"] or engine.scheduler._prefilling:
        engine.step()


def measure(engine: Engine, batch: int, context: int, steps: int) -> dict[str, Any]:
    """Median step time while every request decodes."""
    decoding(engine, batch, context, steps + 40)
    for _ in range(5):
        engine.step()
    timer = Timer(engine.executor.decode_rows)
    engine.executor.decode_rows = timer  # type: ignore[method-assign]
    times: list[float] = []
    host: list[float] = []
    for _ in range(steps):
        before, begin = timer.seconds, perf_counter()
        engine.step()
        times.append(perf_counter() - begin)
        host.append(times[-1] - (timer.seconds - before))
    del engine.executor.decode_rows
    while engine.scheduler.has_work:
        engine.step()
    median = float(np.median(times))
    return {
        "batch": batch,
        "context_tokens": context,
        "step_us": round(median * 1e6, 1),
        "host_us": round(float(np.median(host)) * 1e6, 1),
        "steps_per_s": round(1 / median, 1),
        "tokens_per_s": round(batch / median, 1),
    }


def trace(engine: Engine, batch: int, context: int, path: Path) -> None:
    """A profiler trace of ten decode steps."""
    from torch import profiler

    decoding(engine, batch, context, 40)
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    ) as found:
        for _ in range(10):
            engine.step()
    found.export_chrome_trace(str(path))
    while engine.scheduler.has_work:
        engine.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--device")
    parser.add_argument("--batches", default="1,64,256")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--trace", type=Path)
    options = parser.parse_args()
    batches = [int(b) for b in options.batches.split(",")]
    engine = Engine(
        options.package,
        options.weights,
        device=options.device,
        max_context=options.context + options.steps + 64,
        max_sequences=max(batches),
        prefill_tokens=4096,
        prefix_cache=False,
    )
    rows = [measure(engine, batch, options.context, options.steps) for batch in batches]
    for row in rows:
        print(row)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    if options.trace is not None:
        trace(engine, batches[0], options.context, options.trace)
    engine.close()


if __name__ == "__main__":
    main()
