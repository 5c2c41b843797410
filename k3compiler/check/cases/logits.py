"""Cases of the rows that need logits and of argmax, ties included."""

from __future__ import annotations

import numpy as np

from k3compiler.check.case import Case, Params, poisoned
from k3compiler.check.cases.gemm import normal


def gather_rows(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    tokens = sizes.get("T", 9)
    x = normal(rng, (tokens, params["cols"]), params["dtype"])
    rows = rng.integers(0, tokens, sizes.get("R", 4)).astype(np.int32)
    want = x[rows].astype(np.float64)
    y = poisoned(want.shape, params["dtype"])
    return Case({"x": x, "logit_rows": rows, "y": y}, {"y": want}, 0.0)


def argmax(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    rows, vocab = sizes.get("R", 5), params["vocab"]
    logits = normal(rng, (rows, vocab), "f32", 3.0)
    for row in logits[::2]:  # the largest value twice or thrice
        row[rng.integers(0, vocab, 3)] = row.max() + 1
    logits[-1] -= 100  # all below what lies outside the row
    want = logits.argmax(1).astype(np.int32)
    return Case(
        {"logits": logits, "next_token": poisoned((rows,), "i32")}, {"next_token": want}, 0.0
    )
