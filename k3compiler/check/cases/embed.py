"""Embedding cases: ids inside and outside this rank's slice."""

from __future__ import annotations

import numpy as np

from k3compiler.check.case import MEMORY, Case, Params, poisoned


def embed(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    tokens, rows, dtype = sizes.get("T", 7), params["rows"], params["dtype"]
    first = rows  # the second of three slices
    table = rng.standard_normal((rows, params["cols"]), np.float32).astype(MEMORY[dtype])
    ids = rng.integers(first, 2 * rows, tokens).astype(np.int32)
    ids[::3] = rng.integers(0, 3 * rows, len(ids[::3]))
    inside = (ids >= first) & (ids < 2 * rows)
    want = np.where(inside[:, None], table[np.where(inside, ids - first, 0)], 0).astype(np.float64)
    arguments = {
        "tokens": ids,
        "table": table,
        "y": poisoned(want.shape, dtype),
        "vocab_first": first,
    }
    return Case(arguments, {"y": want}, 0.0)
