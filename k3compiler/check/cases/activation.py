"""Gated activation cases: gates far into both tails."""

from __future__ import annotations

import numpy as np

from k3compiler.check.case import MEMORY, TOLERANCE, Array, Case, Params, poisoned
from k3compiler.reference.activations import situ, swiglu


def gated(activation: str, params: Params, gate: Array, up: Array) -> Array:
    """What the activation of that name must give."""
    if activation == "silu":
        return swiglu(gate, up)
    return situ(gate, up, params["beta"], params.get("linear_beta"))


def act_mul(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    tokens, cols, dtype = sizes.get("T", 7), params["cols"], params["dtype"]
    gu = (6 * rng.standard_normal((tokens, 2 * cols))).astype(MEMORY[dtype])
    gu[:, ::7] = (20 * gu[:, ::7].astype(np.float64)).astype(MEMORY[dtype])
    gate, up = np.split(gu.astype(np.float64), 2, axis=1)
    want = gated(params["activation"], params, gate, up)
    return Case({"gu": gu, "out": poisoned(want.shape, dtype)}, {"out": want}, TOLERANCE[dtype])
