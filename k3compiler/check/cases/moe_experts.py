"""Cases of the grouped expert matrices, of the sum over experts, and of the MXFP8 conversion."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3compiler.check.case import MEMORY, TOLERANCE, Array, Case, Params, poisoned
from k3compiler.check.cases.moe_route import choices, sorted_pairs
from k3compiler.config import MX_GROUP
from k3compiler.dtypes import dequantize_mxfp8, quantize_mxfp8, unpack_mxfp4
from k3compiler.reference.activations import situ, swiglu
from k3compiler.reference.norms import rms_norm


def _matrix(
    params: Params, rng: np.random.Generator, name: str, rows: int, columns: int
) -> dict[str, Array]:
    """Stacked weights that keep unit-size inputs at unit size: in ``dtype``, or any bytes with scales."""
    stack = params["experts"]
    if params["format"] == "plain":
        w = rng.standard_normal((stack, rows, columns), np.float32) / np.sqrt(columns)
        return {name: w.astype(MEMORY[params["dtype"]])}
    middle = 127 - round(np.log2(2.5 * np.sqrt(columns)))
    packed = rng.integers(0, 256, (stack, rows, columns // 2), np.uint8)
    scale = rng.integers(middle - 1, middle + 2, (stack, rows, columns // MX_GROUP), np.uint8)
    return {name: packed, name.replace("w", "s"): scale}


def _dense(made: dict[str, Array], name: str, expert: int) -> Array:
    """One expert's matrix in float64."""
    scale = made.get(name.replace("w", "s"))
    w = made[name][expert]
    return (w if scale is None else unpack_mxfp4(w, scale[expert])).astype(np.float64)


def _activations(params: Params, x: Array) -> tuple[dict[str, Array], Array]:
    """Rows in the format's memory form, and what they mean in float64."""
    if params["format"] != "a8w4":
        held = x.astype(MEMORY[params["dtype"]])
        return {"x": held}, held.astype(np.float64)
    values, scale = quantize_mxfp8(x)
    return {"x": values, "x_scale": scale}, dequantize_mxfp8(values, scale).astype(np.float64)


def _rounded(x: Array) -> Array:
    return dequantize_mxfp8(*quantize_mxfp8(x.astype(np.float32))).astype(np.float64)


def _activate(params: Params, gate: Array, up: Array) -> Array:
    if params["activation"] == "silu":
        return swiglu(gate, up)
    return situ(gate, up, params["beta"], params["linear_beta"])


def moe_gate_up(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    tokens, width, inner = sizes.get("T", 11), params["width"], params["inner"]
    ids, first = choices(rng, params, tokens)
    _, pairs, block_expert, used = sorted_pairs(params, ids, first)
    columns = width if params["format"] == "a8w4" else params["in_cols"]
    rows, meaning = _activations(params, 2 * rng.standard_normal((tokens, columns)))
    z = meaning[:, params["in_offset"] : params["in_offset"] + width]
    made = {**_matrix(params, rng, "w1", inner, width), **_matrix(params, rng, "w3", inner, width)}
    want = np.zeros((len(pairs), inner))
    in_use = np.arange(len(pairs)) < used * params["block_rows"]
    for e in np.unique(block_expert[block_expert >= 0]):
        of_e = np.repeat(block_expert == e, params["block_rows"]) & (pairs >= 0)
        x = z[pairs[of_e] // params["top_k"]]
        want[of_e] = _activate(params, x @ _dense(made, "w1", e).T, x @ _dense(made, "w3", e).T)
    expected = {"h": want}
    if params["dtype"] == "e4m3":
        values, scale = quantize_mxfp8(want.astype(np.float32))
        expected = {"h": values.astype(np.float64), "h_scale": scale}
    elif params.get("rounds"):
        expected = {"h": _rounded(want)}
    where = {name: np.broadcast_to(in_use[:, None], a.shape) for name, a in expected.items()}
    outputs = {
        name: poisoned(a.shape, params["dtype"] if name == "h" else "i8")
        for name, a in expected.items()
    }
    arguments = {**rows, **made, "pairs": pairs, "block_expert": block_expert, **outputs}
    return Case(arguments, expected, TOLERANCE[params["dtype"]], where, frozenset({"h"}))


def moe_down(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """Rows of h that no pair owns are NaN (a8w4: in blocks that are not in use)."""
    tokens, width, inner = sizes.get("T", 11), params["width"], params["inner"]
    ids, first = choices(rng, params, tokens)
    _, pairs, block_expert, used = sorted_pairs(params, ids, first)
    in_use = np.arange(len(pairs)) < used * params["block_rows"]
    h = np.where(in_use[:, None], rng.standard_normal((len(pairs), inner)), np.nan)
    rows, meaning = _activations(params, h)
    made = _matrix(params, rng, "w2", width, inner)
    weights = rng.random((tokens, params["top_k"])).astype(np.float32)
    want = np.full((tokens * params["top_k"], width), np.nan)
    for e in np.unique(block_expert[block_expert >= 0]):
        of_e = np.repeat(block_expert == e, params["block_rows"]) & (pairs >= 0)
        share = weights.reshape(-1, 1)[pairs[of_e]].astype(np.float64)
        want[pairs[of_e]] = share * (meaning[of_e] @ _dense(made, "w2", e).T)
    arguments = {
        **rows,
        **made,
        "pairs": pairs,
        "block_expert": block_expert,
        "weights": weights,
        "y": poisoned(want.shape, params["out_dtype"]),
    }
    return Case(arguments, {"y": want}, TOLERANCE[params["dtype"]])


def moe_gate_up_one(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """moe_gate_up of one token; of a block's rows only the first counts."""
    case = moe_gate_up({**params, "format": "a16w4"}, rng, {**sizes, "T": 1})
    arguments = {k: v for k, v in case.arguments.items() if k != "pairs"}
    where = {"h": case.where["h"] & (case.arguments["pairs"] >= 0)[:, None]}
    return Case(arguments, case.expected, case.tolerance, where, case.keeps)


def moe_down_one(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """moe_down of one token, and the sum of what it makes; the other rows of a block are NaN."""
    case = moe_down({**params, "format": "a16w4"}, rng, {**sizes, "T": 1})
    arguments = {k: v for k, v in case.arguments.items() if k != "y"}
    want = np.nansum(case.expected["y"], axis=0, keepdims=True)
    arguments["x"] = np.where((arguments["pairs"] >= 0)[:, None], arguments["x"], np.nan).astype(
        MEMORY[params["dtype"]]
    )
    arguments["r"] = poisoned(want.shape, params["out_dtype"])
    return Case(arguments, {"r": want}, case.tolerance)


def moe_combine(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """Rows of pairs that belong to other ranks are NaN."""
    tokens, width, top_k = sizes.get("T", 11), params["width"], params["top_k"]
    ids, first = choices(rng, params, tokens)
    local = (ids >= first) & (ids < first + params["experts"])
    y = rng.standard_normal((tokens, top_k, width)).astype(MEMORY[params["in_dtype"]])
    want = np.where(local[:, :, None], y.astype(np.float64), 0.0).sum(1)
    y[~local] = np.nan
    made: dict[str, Array] = {}
    if params["eps"] is not None:
        made["norm_w"] = (1 + 0.3 * rng.standard_normal(width)).astype(MEMORY[params["dtype"]])
        want = rms_norm(want, made["norm_w"].astype(np.float64), params["eps"])
    arguments = {
        "y": y.reshape(-1, width),
        "ids": ids,
        **made,
        "expert_first": first,
        "r": poisoned(want.shape, params["out_dtype"]),
    }
    return Case(arguments, {"r": want}, TOLERANCE[params["dtype"]])


def mx_quantize(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    x, part = _groups(params, rng, sizes)
    values, scale = quantize_mxfp8(part)
    arguments = {
        "x": x,
        "values": poisoned(values.shape, "e4m3"),
        "scale": poisoned(scale.shape, "i8"),
    }
    where = {"values": np.repeat(scale != 255, MX_GROUP, axis=1)}
    wide = values.astype(np.float64)
    return Case(arguments, {"values": wide, "scale": scale}, 0.0, where)


def mx_round(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    x, part = _groups(params, rng, sizes)
    want = dequantize_mxfp8(*quantize_mxfp8(part)).astype(np.float64)
    return Case({"x": x, "y": poisoned(want.shape, params["dtype"])}, {"y": want}, 0.0)


def _groups(
    params: Params, rng: np.random.Generator, sizes: dict[str, int]
) -> tuple[Array, NDArray[np.float32]]:
    """Rows with groups of all sizes, and the columns of them that are read.

    Of the groups one is of zeros, three are about the greatest e4m3, one has NaN, one infinity.
    """
    tokens, cols, at = sizes.get(params.get("rows", "T"), 9), params["cols"], params["in_offset"]
    size = 2.0 ** rng.integers(-40, 40, (tokens, params["in_cols"] // MX_GROUP + 1))
    x = (
        rng.standard_normal((tokens, params["in_cols"]))
        * np.repeat(size, MX_GROUP, 1)[:, : params["in_cols"]]
    )
    x[0, at : at + MX_GROUP] = 0.0
    x[1, at : at + MX_GROUP] = 1.99
    for row, greatest in ((2, 1.75), (3, 1.7578125)):  # 448 / 2^8 and the next bf16
        x[row, at + MX_GROUP : at + 2 * MX_GROUP] = greatest
    x[2, at + 5], x[3, at + 7] = np.nan, -np.inf
    x = x.astype(MEMORY[params["dtype"]])
    return x, x[:, at : at + cols].astype(np.float32)
