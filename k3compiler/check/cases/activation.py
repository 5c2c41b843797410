"""Gated activation cases: gates far into both tails."""

from __future__ import annotations

import numpy as np

from k3compiler.check.case import MEMORY, TOLERANCE, Case, Params, poisoned
from k3compiler.reference.activations import situ, swiglu


def act_mul(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    tokens, cols, dtype = sizes.get("T", 7), params["cols"], params["dtype"]
    gu = (6 * rng.standard_normal((tokens, 2 * cols))).astype(MEMORY[dtype])
    gu[:, ::7] = (20 * gu[:, ::7].astype(np.float64)).astype(MEMORY[dtype])
    gate, up = np.split(gu.astype(np.float64), 2, axis=1)
    if params["activation"] == "silu":
        want = swiglu(gate, up)
    else:
        want = situ(gate, up, params["beta"], params["linear_beta"])
    return Case({"gu": gu, "out": poisoned(want.shape, dtype)}, {"out": want}, TOLERANCE[dtype])
