"""MLA cache cases: rows into shuffled pages, and out again."""

from __future__ import annotations

import numpy as np

from k3compiler.check.case import MEMORY, TOLERANCE, Case, Params, poisoned
from k3compiler.check.cases.gemm import normal
from k3compiler.check.cases.mla_batch import filled_cache, prefill_batch
from k3compiler.check.cases.norm import rms_norm
from k3compiler.reference.mla import mla_cache_rows


def mla_latent_write(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    dtype, page_tokens = params["dtype"], params["page_tokens"]
    width = params["kv_lora"] + params["rope"]
    inputs, pages = prefill_batch(rng, sizes, page_tokens)
    tokens = len(inputs["tokens"])
    x = np.full((tokens, params["in_cols"]), np.nan, MEMORY[dtype])
    read = slice(params["in_offset"], params["in_offset"] + width)
    x[:, read] = normal(rng, (tokens, width), dtype, 3.0)
    w = (1 + normal(rng, (params["kv_lora"],), "f32", 0.3)).astype(MEMORY[dtype])
    rows = mla_cache_rows(x[:, read].astype(np.float64), w.astype(np.float64), params["eps"])
    cache = poisoned((pages, page_tokens, width), dtype)
    want, written = np.zeros(cache.shape), np.zeros(cache.shape, bool)
    position = inputs["token_pos"]
    page = inputs["page_table"][inputs["token_seq"], position // page_tokens]
    want[page, position % page_tokens] = rows
    written[page, position % page_tokens] = True
    named = {name: inputs[name] for name in ("token_seq", "token_pos", "page_table")}
    arguments = {"x": x, "w": w, "mla_cache": cache, **named}
    where, expected = {"mla_cache": written}, {"mla_cache": want}
    if params.get("q_lora"):
        normed = {"in_cols": params["q_cols"], "in_offset": params["q_offset"]}
        query = rms_norm({**params, "cols": params["q_lora"], **normed}, rng, {"T": tokens})
        names = {"x": "q_a", "w": "q_w", "y": "q"}
        arguments |= {names[name]: value for name, value in query.arguments.items()}
        expected["q"] = query.expected["y"]
    return Case(arguments, expected, TOLERANCE[dtype], where, frozenset(where))


def mla_gather(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    dtype, page_tokens = params["dtype"], params["page_tokens"]
    width = params["kv_lora"] + params["rope"]
    inputs, pages = prefill_batch(rng, sizes, page_tokens)
    cache, rows = filled_cache(rng, (pages, page_tokens, width), inputs, dtype)
    want = np.concatenate(rows)
    named = {name: inputs[name] for name in ("kv_start", "page_table")}
    arguments = {"mla_cache": cache, "latent": poisoned(want.shape, dtype), **named}
    return Case(arguments, {"latent": want}, 0.0)
