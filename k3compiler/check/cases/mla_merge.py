"""Cases of what follows MLA decode; parts that no sequence uses hold NaN, and so does what no product reads."""

from __future__ import annotations

import numpy as np

from k3compiler.check.case import TOLERANCE, Case, Params, poisoned
from k3compiler.check.cases.gemm import head_gemm, normal
from k3compiler.check.cases.mla_batch import decode_batch


def mla_merge(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    dtype, heads, rank = params["dtype"], params["heads"], params["kv_lora"]
    span = params["split_tokens"]
    inputs, _ = decode_batch(rng, {"CTX": 3 * span, **sizes}, span)
    batch = len(inputs["seq_ctx"])
    lengths = rng.integers(1, max(4, sizes.get("NSPLIT", 4)) * span, batch)
    lengths[0] = 1
    units = -(-lengths // span)
    splits = sizes.get("NSPLIT", int(units.max()) + 1)
    counts = -(-units // -(-units // splits))
    used = np.arange(splits) < counts[:, None]
    acc = normal(rng, (batch, splits, heads, rank), "f32")
    m = normal(rng, (batch, splits, heads), "f32", 4.0)
    l = (1 + np.abs(normal(rng, (batch, splits, heads), "f32", 3.0))).astype(np.float32)
    acc[~used], m[~used], l[~used] = np.nan, -np.inf, 0
    weight = np.exp2(m.astype(np.float64) - m.max(1, keepdims=True))
    total = np.where(used[..., None, None], acc.astype(np.float64), 0) * weight[..., None]
    want = total.sum(1) / (weight * l).sum(1)[..., None]
    arguments = {
        "acc": acc,
        "m": m,
        "l": l,
        "seq_ctx": (lengths - 1).astype(np.int32),
        "o_lat": poisoned(want.shape, dtype),
    }
    return Case(arguments, {"o_lat": want}, TOLERANCE[dtype])


def mla_merge_up(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """The merge's case and then the product's, which brings weights, gate and y."""
    merge = mla_merge(params, rng, sizes)
    latent = merge.expected["o_lat"]
    rank = params["kv_lora"]
    shape = {"K": rank, "x_cols": rank, "w_cols": rank}
    product = head_gemm({**params, **shape}, rng, {"T": len(latent)}, x=latent)
    arguments = {**merge.arguments, **product.arguments}
    del arguments["o_lat"], arguments["x"]
    return Case(arguments, product.expected, product.tolerance)
