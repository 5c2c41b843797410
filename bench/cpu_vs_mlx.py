"""The CPU target against mlx-lm on the same checkpoint: prefill of 512 tokens, and batch-1 decode behind them.

    python -m bench.cpu_vs_mlx [--out bench/results/cpu-vs-mlx.json]

Both in float32, experts MXFP4, in one process; rounds take turns. mlx-lm is driven as its own generate loop does:
the prompt without its last token fills the cache (no logits), then steps of one token. Only ratios are kept:
a CPU's seconds say more about the machine than about the code.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import k3compiler
from k3compiler import knobs
from k3compiler.driver import compile_model
from k3compiler.package.reader import Package
from k3compiler.runtime.device.cpu import usable_levels
from k3compiler.runtime.engine import Engine
from k3compiler.runtime.step import SeqChunk
from tests.oracles.mlx_oracle import MlxOracle

ROOT = Path(__file__).parents[1]
PROMPT_TOKENS, NEW_TOKENS, ROUNDS = 512, 32, 7
Seconds = tuple[float, float]  # of the prefill, of one decode step


class Ours:
    """The compiled package."""

    def __init__(self, package: Path, checkpoint: Path) -> None:
        context = PROMPT_TOKENS + NEW_TOKENS + 1
        self.engine = Engine(package, checkpoint, max_context=context, max_sequences=1)

    def run(self, tokens: list[int]) -> tuple[Seconds, list[int]]:
        """Greedy: seconds, and the tokens."""
        cache = self.engine.cache.open(len(tokens) + NEW_TOKENS)
        assert cache is not None
        chosen: list[int] = []

        def step(ids: list[int], run: Callable[..., Any]) -> None:
            self.engine.cache.grow(cache, cache.context_tokens + len(ids))
            chunk = SeqChunk(ids, cache.context_tokens, cache.slot, cache.pages, "last")
            chosen.append(int(run([chunk]).next_token[0]))
            cache.context_tokens += len(ids)

        try:
            prefill = _seconds(lambda: step(tokens, self.engine.executor.prefill))
            decode = _seconds(
                lambda: [step(chosen[-1:], self.engine.executor.decode) for _ in range(NEW_TOKENS)]
            )
        finally:
            self.engine.cache.close(cache)
        return (prefill, decode / NEW_TOKENS), chosen


class Theirs:
    """mlx-lm's model."""

    def __init__(self, checkpoint: Path) -> None:
        import mlx.core as mx

        self.mx, self.oracle = mx, MlxOracle(checkpoint)

    def run(self, tokens: list[int]) -> tuple[Seconds, list[int]]:
        """Greedy: seconds, and the tokens."""
        mx, model, cache = self.mx, self.oracle.model, self.oracle.new_cache()
        chosen: list[int] = []

        def step(token: int) -> None:
            logits = model(mx.array([[token]]), cache=cache)
            chosen.append(int(mx.argmax(logits[0, -1]).item()))

        def prefill() -> None:
            model(mx.array([tokens[:-1]]), cache=cache)
            mx.eval([part.state for part in cache])
            step(tokens[-1])

        seconds = _seconds(prefill)
        decode = _seconds(lambda: [step(chosen[-1]) for _ in range(NEW_TOKENS)])
        return (seconds, decode / NEW_TOKENS), chosen


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(package: Path, checkpoint: Path) -> dict[str, Any]:
    """Ratios mlx-lm / ours, per round and their median; more than 1 means that ours is faster."""
    ours, theirs = Ours(package, checkpoint), Theirs(checkpoint)
    vocab = ours.engine.package.manifest.config.vocab_size
    prefill: list[float] = []
    decode: list[float] = []
    for number in range(ROUNDS + 1):
        tokens = np.random.default_rng(number).integers(0, vocab, PROMPT_TOKENS).tolist()
        (a, b), mine = ours.run(tokens)
        (x, y), other = theirs.run(tokens)
        if mine != other:
            print(f"round {number}: different tokens: a near tie, or a bug", file=sys.stderr)
        if number > 0:  # round 0 warms both up
            prefill.append(x / a)
            decode.append(y / b)
    ours.engine.close()
    return {
        "prefill_512": {"ratio": round(median(prefill), 2), "rounds": _rounded(prefill)},
        "decode_batch_1": {"ratio": round(median(decode), 2), "rounds": _rounded(decode)},
    }


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 2) for value in values]


def conditions(package: Package) -> dict[str, Any]:
    """What the ratios depend on."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(line.partition(":")[2].strip() for line in cpuinfo if "model name" in line)
    names = ("numpy", "mlx", "mlx-lm", "torch-mlir")
    return {
        "cpu": model,
        "level": usable_levels(package)[0],
        "num_threads": knobs.NUM_THREADS.get(),
        "load_average": round(os.getloadavg()[0], 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "versions": {"k3compiler": k3compiler.__version__} | {n: version(n) for n in names},
        "commit": _commit(),
        "package": package.manifest.digest,
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> None:
    """Compile the example (or take a package), measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "examples" / "k3-nano")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "cpu-vs-mlx.json")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        path = compile_model(str(options.checkpoint), target="cpu", out=Path(folder) / "package")
        start = conditions(Package.open(path))
        ratios = measure(path, options.checkpoint)
    result = {"what": "seconds of mlx-lm / seconds of k3compiler, float32, one process"}
    result |= {"checkpoint": options.checkpoint.name, **ratios, **start}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, entry in ratios.items():
        print(f"{name}: {entry['ratio']}x of mlx-lm (rounds {entry['rounds']})")
    print(f"results: {options.out}")


if __name__ == "__main__":
    main()
