"""Cases of elementwise sums."""

from __future__ import annotations

import numpy as np

from k3compiler.check.case import MEMORY, TOLERANCE, Case, Params, poisoned


def add(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    shape, dtype = (sizes.get("T", 5), params["cols"]), params["dtype"]
    a, b = (rng.standard_normal(shape).astype(MEMORY[dtype]) for _ in range(2))
    want = a.astype(np.float64) + b.astype(np.float64)
    return Case({"a": a, "b": b, "y": poisoned(shape, dtype)}, {"y": want}, TOLERANCE[dtype])
