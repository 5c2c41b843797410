"""What scheduler and cache cost per step and per lookup, on this machine's one core.

    python bench/scheduler_cost.py [--steps 200] [--out bench/results/scheduler-cost.json]

Steady decoding of 256 requests at several context lengths (the device does nothing), and the lookup
of a prompt of 2**20 tokens, hashing included.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from k3compiler.runtime.cache.hybrid import HybridCache
from k3compiler.runtime.cache.unit_keys import UnitKeys
from k3compiler.runtime.scheduler.continuous import ContinuousScheduler
from k3compiler.runtime.scheduler.job import Job
from k3compiler.runtime.simulate.config import parse_config

ROWS = 256
BUDGET = 65536


def run_step(scheduler: ContinuousScheduler) -> tuple[float, bool]:
    """One step with an idle device: microseconds, and whether it was decoding only."""
    begin = perf_counter_ns()
    plan = scheduler.schedule()
    scheduler.cache.arena.ops.clear()
    first = {part.row: 1 for part in plan.prefill if part.is_last}
    tokens = np.ones((len(plan.rows), 1), np.int32)
    scheduler.complete(plan, tokens, np.ones(len(plan.rows), np.int64), first)
    return (perf_counter_ns() - begin) / 1000, not plan.prefill


def decode_cost(context: int, steps: int) -> dict[str, Any]:
    """Steady decoding of 256 requests that hold ``context`` tokens each."""
    config = parse_config({"arena_bytes": 8 * 2**40, "max_batched_tokens": BUDGET})
    scheduler = ContinuousScheduler(HybridCache(config.shape), config.limits, config.keep)
    rng = np.random.default_rng(1)
    for number in range(ROWS):
        length = context - number % 64  # so that every step has rows that need a page
        prompt = rng.integers(0, 163840, length).astype(np.int32)
        scheduler.add(Job(str(number), prompt, steps + 100, order=number))
    while True:
        _, is_decode = run_step(scheduler)
        if is_decode:
            break
    times = np.array([run_step(scheduler)[0] for _ in range(steps)])
    return {
        "running": ROWS,
        "context_tokens": context,
        "live_tokens": ROWS * context,
        "median_us": round(float(np.median(times)), 1),
        "p99_us": round(float(np.percentile(times, 99)), 1),
    }


def lookup_cost(num_tokens: int) -> dict[str, Any]:
    """Hash and find a whole prompt that the cache holds; the median of five."""
    config = parse_config({"arena_bytes": 2**40, "max_batched_tokens": num_tokens})
    cache = HybridCache(config.shape)
    scheduler = ContinuousScheduler(cache, config.limits, config.keep)
    prompt = np.random.default_rng(2).integers(0, 163840, num_tokens).astype(np.int32)
    scheduler.add(Job("a", prompt[:-1], 1, order=0))
    while scheduler.has_work:
        run_step(scheduler)
    times: list[float] = []
    for _ in range(5):
        begin = perf_counter_ns()
        hit = cache.probe(UnitKeys.of(prompt, cache.unit), num_tokens)
        times.append((perf_counter_ns() - begin) / 1e6)
    assert hit.tokens == num_tokens - cache.unit, f"{hit.tokens} of {num_tokens} tokens found"
    return {"tokens": num_tokens, "median_ms": round(float(np.median(times)), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = {
        "decode": [decode_cost(context, options.steps) for context in (512, 4096, 16384)],
        "lookup": [lookup_cost(2**16), lookup_cost(2**20)],
    }
    for rows in result.values():
        for row in rows:
            print(row)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
