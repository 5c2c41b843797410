"""Matrix product cases; columns outside the slices that are read hold NaN."""

from __future__ import annotations

import numpy as np

from k3compiler.check.case import MEMORY, TOLERANCE, Array, Case, Params, poisoned
from k3compiler.check.cases.activation import gated
from k3compiler.reference.activations import sigmoid

GATED = ("situ", "silu")

F32_OUT_OF_BF16 = 2e-4  # bf16 operands, accumulator stored unrounded
_ROWS = 4096


def product(x: Array, w: Array) -> Array:
    """x wᵀ in float64, some rows of a large w at a time."""
    x = x.astype(np.float64)
    blocks = (w[i : i + _ROWS].astype(np.float64) for i in range(0, len(w), _ROWS))
    return np.concatenate([x @ block.T for block in blocks], axis=1)


def normal(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float = 1.0
) -> Array:
    return (np.float32(scale) * rng.standard_normal(shape, np.float32)).astype(MEMORY[dtype])


def gemv(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """As many tokens as it is for, at most."""
    most = params["tokens"]
    return gemm({**params, "block_m": most}, rng, {**sizes, "T": min(sizes.get("T", most), most)})


def gemm(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    # by default one block of tokens and a part of the next
    block = params["block_n"] if params.get("swap") else params["block_m"]
    tokens = sizes.get("T", int(block) + 5)
    n, k, dtype = params["N"], params["K"], params["dtype"]
    out_dtype = params.get("out_dtype") or dtype
    first = params.get("in_offset", 0)
    x = np.full((tokens, params["in_cols"]), np.nan, MEMORY[dtype])
    x[:, first : first + k] = normal(rng, (tokens, k), dtype)
    epilogue = params.get("epilogue", "none")
    halves = 2 if epilogue in GATED else 1
    w = normal(rng, (halves * n, k), dtype, (3.0 if halves == 2 else 1.0) * k**-0.5)
    want = product(x[:, first : first + k], w)
    if halves == 2:
        gate, up = np.split(want, 2, axis=1)
        want = gated(epilogue, params, gate, up)
    arguments: dict[str, Array | int | float] = {"x": x, "w": w}
    names = {"add": ("r",), "add2": ("r", "r2")}.get(epilogue, ())
    for name in names:
        r = normal(rng, (tokens, n), dtype)
        arguments[name] = r
        want = want + r.astype(np.float64)
    if epilogue == "product":
        given, more = second_product(params, rng, tokens)
        arguments |= given
        want = want + more
    out_cols, out_first = params.get("out_cols") or n, params.get("out_offset", 0)
    arguments["y"] = poisoned((tokens, out_cols), out_dtype)
    expected = np.zeros((tokens, out_cols))
    expected[:, out_first : out_first + n] = want
    written = np.zeros((tokens, out_cols), bool)
    written[:, out_first : out_first + n] = True
    tolerance = TOLERANCE[dtype] if out_dtype == dtype else F32_OUT_OF_BF16
    return Case(arguments, {"y": expected}, tolerance, {"y": written}, frozenset({"y"}))


def second_product(
    params: Params, rng: np.random.Generator, tokens: int
) -> tuple[dict[str, Array], Array]:
    """x2 and w2 of a sum of two products, and what they add."""
    dtype, k, first = params["dtype"], params["K2"], params.get("in_offset2", 0)
    x = np.full((tokens, params["in_cols2"]), np.nan, MEMORY[dtype])
    x[:, first : first + k] = normal(rng, (tokens, k), dtype)
    w = normal(rng, (params["N"], k), dtype, k**-0.5)
    return {"x2": x, "w2": w}, product(x[:, first : first + k], w)


def head_gemm(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    tokens = sizes.get("T", int(params["block_n"]) + 5)
    dtype, heads = params["dtype"], params["heads"]
    n, k = params["N"], params["K"]
    x = np.full((tokens, heads, params["x_cols"]), np.nan, MEMORY[dtype])
    w = np.full((heads, params["w_rows"], params["w_cols"]), np.nan, MEMORY[dtype])
    read = slice(params.get("x_offset", 0), params.get("x_offset", 0) + k)
    rows, cols = (k, n) if params.get("transposed") else (n, k)
    first = params.get("w_offset", 0)
    x[:, :, read] = normal(rng, (tokens, heads, k), dtype)
    w[:, first : first + rows, :cols] = normal(rng, (heads, rows, cols), dtype, k**-0.5)
    w_h = w[:, first : first + rows, :cols].astype(np.float64)
    if not params.get("transposed"):
        w_h = w_h.transpose(0, 2, 1)
    want = np.einsum("thk,hkn->thn", x[:, :, read].astype(np.float64), w_h)
    arguments: dict[str, Array | int | float] = {"x": x, "w": w}
    if params.get("epilogue") == "gate":
        g = np.full((tokens, params["g_cols"]), np.nan, MEMORY[dtype])
        gate = slice(params.get("g_offset", 0), params.get("g_offset", 0) + heads * n)
        g[:, gate] = normal(rng, (tokens, heads * n), dtype, 2.0)
        want = want * sigmoid(g[:, gate].astype(np.float64)).reshape(want.shape)
        arguments["g"] = g
    arguments["y"] = poisoned(want.shape, dtype)
    return Case(arguments, {"y": want}, TOLERANCE[dtype])
