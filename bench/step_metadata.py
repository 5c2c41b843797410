"""The metadata kernel by batch and context, and tokens alone, beside others and across buckets.

    python bench/step_metadata.py PKG --weights DIR [--device cuda] [--out metadata.json]

Kernel times are per launch, of many in a row in one CUDA graph: rows that go on, rows that all turn a
page, and rows that are all set anew with all of their pages. Tables are as wide as the context needs,
so these are the times of any model.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from k3compiler.check.rates import describe_device
from k3compiler.check.runner import single_launch, symbol_values
from k3compiler.package.manifest import KernelRecord
from k3compiler.package.reader import Package
from k3compiler.package.step_record import NUM_FIELDS, RowField
from k3compiler.runtime.device.launch_table import LaunchTable
from k3compiler.runtime.device.select import open_device
from k3compiler.runtime.engine import Engine
from k3compiler.runtime.step import SeqChunk

LAUNCHES, REPEATS, PAGE = 50, 15, 64
GAP = 0.1  # of the top two logits, above which another bucket must choose the same


def arguments(batch: int, context: int, case: str) -> dict[str, Any]:
    """Buffers of a launch: ``goes on``, ``turns`` or ``anew``."""
    columns = context // PAGE
    ints = {n: np.zeros(batch, np.int32) for n in ("tokens", "token_seq", "token_pos", "seq_ctx")}
    ints |= {n: np.zeros(batch, np.int32) for n in ("seq_slot", "next_token", "logit_rows")}
    ints |= {n: np.zeros(batch, np.int32) for n in ("top_k", "seed", "step_idx")}
    record = np.zeros(1 + batch * (1 + NUM_FIELDS + columns), np.int32)
    record[0] = batch
    if case == "turns":
        record[1 : 1 + batch] = -7
    if case == "anew":
        news = record[1 + batch :].reshape(batch, -1)
        news[:, RowField.CONTEXT], news[:, RowField.NUM_PAGES] = context - 1, columns
        news[:, NUM_FIELDS:] = np.arange(1, columns + 1)
        record[1 : 1 + batch] = 1 + batch + np.arange(batch) * news.shape[1]
    floats = {n: np.zeros(batch, np.float32) for n in ("temperature", "top_p")}
    table = np.zeros((batch, columns), np.int32)
    return {"record": record, **ints, **floats, "page_table": table}


def launch_us(device: Any, kernel: KernelRecord, given: dict[str, Any]) -> float:
    """Median µs of a launch among LAUNCHES in a row."""
    names = [a.name for a in kernel.args if a.kind == "buffer"]
    buffers = {name: device.allocate(given[name].nbytes) for name in names}
    for name in names:
        device.upload(buffers[name], given[name])
    one = single_launch(kernel, given, hidden_slots=device.hidden_slots).launches[0]
    ids = {name: i for i, name in enumerate(names)}
    table = LaunchTable(
        [one] * LAUNCHES, {kernel.symbol: kernel}, ids, hidden_slots=device.hidden_slots
    )
    table.bind(np.array([buffers[name].pointer for name in names], np.int64))
    table.patch(symbol_values(kernel, given))
    program, times = device.program(table), list[float]()
    for _ in range(REPEATS):
        device.synchronize()
        begin = perf_counter()
        program.run([], (0,))
        device.synchronize()
        times.append((perf_counter() - begin) / LAUNCHES * 1e6)
    return round(float(np.median(times[3:])), 2)


def kernel_times(package: Package, device: str | None) -> list[dict[str, Any]]:
    opened = open_device(device, package.manifest.target)
    opened.load(package)
    kernel = _kernel(package)
    rows = [
        {
            "batch": batch,
            "context_tokens": context,
            **{
                f"{case.replace(' ', '_')}_us": launch_us(
                    opened, kernel, arguments(batch, context, case)
                )
                for case in ("goes on", "turns", "anew")
            },
        }
        for context in (4096, 131072)
        for batch in (1, 64, 256)
    ]
    opened.close()
    return rows


def _kernel(package: Package) -> KernelRecord:
    return next(k for k in package.manifest.kernels if k.family == "decode_metadata")


class Forced:
    """Sequences that are prefilled one by one and decode given tokens in chosen company."""

    def __init__(self, engine: Engine, prompts: list[list[int]], steps: int) -> None:
        self._engine, self._prompts, self._steps = engine, prompts, steps

    def run(self, chosen: list[int], bucket: int, tokens: dict[int, list[int]] | None) -> Any:
        """Logits ``[steps, chosen, vocab]``; greedy where no tokens are forced."""
        executor, cache = self._engine.executor, self._engine.cache
        executor.buckets = (bucket,)
        opened, fed, found = [], {}, []
        for i in chosen:
            prompt = self._prompts[i]
            sequence = cache.open(len(prompt) + self._steps)
            assert sequence is not None
            cache.grow(sequence, len(prompt) + self._steps)
            chunk = SeqChunk(prompt, 0, sequence.slot, sequence.pages)
            logits = executor.prefill([chunk], want_logits=True).logits
            assert logits is not None
            fed[i] = int(logits[0].argmax())
            opened.append(sequence)
        for step in range(self._steps):
            chunks = [
                SeqChunk([fed[i]], len(self._prompts[i]) + step, s.slot, s.pages)
                for i, s in zip(chosen, opened, strict=True)
            ]
            logits = executor.decode(chunks, want_logits=True).logits
            assert logits is not None
            found.append(logits)
            for row, i in enumerate(chosen):
                fed[i] = int(logits[row].argmax()) if tokens is None else tokens[i][step]
        for sequence in opened:
            cache.close(sequence)
        return np.stack(found)


def company(engine: Engine, steps: int = 40, most: int = 64) -> dict[str, Any]:
    """Tokens of a few sequences alone and beside 63 others, in one bucket and in others."""
    rng = np.random.default_rng(5)
    prompts = [
        rng.integers(0, engine.executor.vocab_size, int(n)).tolist()
        for n in rng.integers(5, 200, most)
    ]
    forced = Forced(engine, prompts, steps)
    together = forced.run(list(range(most)), most, None)
    tokens = {i: together[:, i].argmax(-1).tolist() for i in range(most)}
    watched = list(range(0, most, 8))
    same_bits = [np.array_equal(forced.run([i], most, None)[:, 0], together[:, i]) for i in watched]
    top = np.sort(together, axis=-1)
    is_clear = top[..., -1] - top[..., -2] > GAP
    rows: list[dict[str, Any]] = []
    for bucket in (1, 8, 32):
        checked = differing = 0
        worst = 0.0
        for begin in range(0, len(watched), bucket):
            some = watched[begin : begin + bucket]
            found = forced.run(some, bucket, tokens)
            wrong = found.argmax(-1) != together[:, some].argmax(-1)
            checked += int(is_clear[:, some].sum())
            differing += int((wrong & is_clear[:, some]).sum())
            worst = max(worst, float(np.abs(found - together[:, some]).max()))
        rows.append(
            {
                "bucket": bucket,
                "clear_choices": checked,
                "different": differing,
                "worst_logit_difference": round(worst, 4),
            }
        )
    return {
        "bucket": most,
        "sequences": len(watched),
        "steps": steps,
        "same_bits_alone": int(sum(same_bits)),
        "across": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    package = Package.open(options.package)
    times = kernel_times(package, options.device)
    for row in times:
        print(row)
    engine = Engine(
        package, options.weights, device=options.device, max_context=512, max_sequences=64
    )
    tokens = company(engine)
    print(tokens)
    if options.out is not None:
        kernel = _kernel(package)
        facts = {
            "date": datetime.date.today().isoformat(),
            "package": package.manifest.digest,
            "digest": {f: package.manifest.files[name] for f, name in kernel.files.items()},
            **describe_device(engine.executor.device),
        }
        found = facts | {"kernel": times, "tokens": tokens}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    engine.close()


if __name__ == "__main__":
    main()
