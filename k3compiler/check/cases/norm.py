"""RMSNorm cases, by itself and before a product."""

from __future__ import annotations

from typing import Any

import numpy as np

from k3compiler.check.case import MEMORY, TOLERANCE, Case, Params, poisoned
from k3compiler.check.cases.gemm import normal, product, second_product


def rms_norm(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    tokens, dtype = sizes.get("T", 7), params["dtype"]
    x = (3 * rng.standard_normal((tokens, params["in_cols"]))).astype(MEMORY[dtype])
    w = (1 + 0.3 * rng.standard_normal(params["cols"])).astype(MEMORY[dtype])
    first = params["in_offset"]
    v = x[:, first : first + params["cols"]].astype(np.float64)
    want = v / np.sqrt((v * v).mean(1, keepdims=True) + params["eps"]) * w.astype(np.float64)
    part_cols = params.get("part_cols")
    if part_cols is not None:
        want = want[:, part_cols : 2 * part_cols]  # the second part
    arguments: dict[str, Any] = {"x": x, "w": w, "y": poisoned(want.shape, dtype)}
    if part_cols is not None:
        arguments["part"] = 1
    return Case(arguments, {"y": want}, TOLERANCE[dtype])


def norm_gemv(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """Tokens as many as it is for, at most; the last part of the columns."""
    most, dtype, k = params["tokens"], params["dtype"], params["K"]
    tokens, cols = min(sizes.get("T", most), most), params["cols"]
    norm = rms_norm({**params, "part_cols": None}, rng, {"T": tokens})
    part = cols // k - 1
    normed = norm.expected["y"][:, part * k : (part + 1) * k]
    w = normal(rng, (params["N"], k), dtype, k**-0.5)
    want = product(normed, w)
    arguments: dict[str, Any] = {"x": norm.arguments["x"], "g": norm.arguments["w"], "w": w}
    if params.get("epilogue") == "add":
        r = normal(rng, want.shape, dtype)
        want = want + r.astype(np.float64)
        arguments["r"] = r
    elif params.get("epilogue") == "product":
        given, more = second_product(params, rng, tokens)
        arguments |= given
        want = want + more
    arguments |= {"y": poisoned(want.shape, dtype), "part": part}
    return Case(arguments, {"y": want}, TOLERANCE[dtype])
