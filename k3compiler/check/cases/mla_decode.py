"""MLA decode cases: parts of the context one by one, and their merge."""

from __future__ import annotations

from typing import Any

import numpy as np

from k3compiler.check.case import TOLERANCE, Array, Case, Params, poisoned
from k3compiler.check.cases.gemm import normal
from k3compiler.check.cases.mla_batch import decode_batch, filled_cache
from k3compiler.package.expr import cdiv


def mla_decode(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    dtype, page_tokens, heads = params["dtype"], params["page_tokens"], params["heads"]
    rank, nope, rope = params["kv_lora"], params["nope"], params["rope"]
    inputs, pages = decode_batch(rng, sizes, page_tokens)
    batch, columns = inputs["page_table"].shape
    cache, rows = filled_cache(rng, (pages, page_tokens, rank + rope), inputs, dtype)
    # scores of a few units: sharp enough that a wrong maximum shows
    q_lat = normal(rng, (batch, heads, rank), dtype, (nope / rank) ** 0.5)
    q = normal(rng, (batch, heads, nope + rope), dtype)
    q[..., :nope] = np.nan
    query = np.concatenate([q_lat, q[..., nope:]], axis=2).astype(np.float64)
    splits = sizes.get("NSPLIT", cdiv(columns * page_tokens, params["split_tokens"]))
    expected, acc_written = _partials(params, query, rows, splits)
    named = {name: inputs[name] for name in ("seq_ctx", "page_table")}
    arguments: dict[str, Any] = {"q_lat": q_lat, "q": q, "mla_cache": cache, **named}
    arguments |= {name: poisoned(value.shape, "f32") for name, value in expected.items()}
    tolerance = TOLERANCE[dtype]
    return Case(arguments, expected, tolerance, {"acc": acc_written}, frozenset({"acc"}))


def _partials(
    params: Params, query: Array, rows: list[Array], splits: int
) -> tuple[dict[str, Array], Array]:
    """acc, m and l of every part in float64, and which of acc is written."""
    batch, heads, _ = query.shape
    rank, least = params["kv_lora"], params["split_tokens"]
    scale = (params["nope"] + params["rope"]) ** -0.5 / np.log(2)
    acc = np.zeros((batch, splits, heads, rank))
    m, l = np.full(acc.shape[:3], -np.inf), np.zeros(acc.shape[:3])
    for s, (q, cache) in enumerate(zip(query, rows, strict=True)):
        span = cdiv(cdiv(len(cache), least), splits) * least
        for i in range(cdiv(len(cache), span)):
            part = cache[i * span : (i + 1) * span]
            scores = q @ part.T * scale
            m[s, i] = scores.max(1)
            weight = np.exp2(scores - m[s, i][:, None])
            l[s, i] = weight.sum(1)
            acc[s, i] = weight @ part[:, :rank]
    written = np.broadcast_to((l > 0)[..., None], acc.shape)
    return {"acc": acc, "m": m, "l": l}, written


def mla_merge(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    dtype, heads, rank = params["dtype"], params["heads"], params["kv_lora"]
    span = params["split_tokens"]
    inputs, _ = decode_batch(rng, {"CTX": 3 * span, **sizes}, span)
    batch = len(inputs["seq_ctx"])
    lengths = rng.integers(1, 4 * span, batch)
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
