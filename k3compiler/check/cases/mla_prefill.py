"""MLA prefill cases: ragged sequences with and without context."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from k3compiler.check.case import MEMORY, TOLERANCE, Array, Case, Params, poisoned
from k3compiler.check.cases.gemm import normal
from k3compiler.check.cases.mla_batch import CHUNK_TOKENS, prefill_batch
from k3compiler.reference.activations import sigmoid
from k3compiler.reference.mla import causal_weights


def mla_prefill(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    dtype, heads = params["dtype"], params["heads"]
    nope, rope, v = params["nope"], params["rope"], params["v"]
    inputs, _ = prefill_batch(rng, {"T": 2 * params["block_m"] + 17, **sizes}, CHUNK_TOKENS)
    tokens, total = len(inputs["tokens"]), int(inputs["kv_start"][-1])
    q = normal(rng, (tokens, heads, nope + rope), dtype, 2.0)
    kv = normal(rng, (total, heads * (nope + v)), dtype)
    latent = np.full((total, params["kv_lora"] + rope), np.nan, MEMORY[dtype])
    latent[:, params["kv_lora"] :] = normal(rng, (total, rope), dtype)
    named = {name: inputs[name] for name in ("seq_start", "kv_start", "seq_ctx")}
    arguments: dict[str, Any] = {"q": q, "kv": kv, "latent": latent, **named}
    want = _attention(params, arguments).reshape(tokens, heads * v)
    if params["gate"]:
        first = params["g_offset"]
        g = np.full((tokens, params["g_cols"]), np.nan, MEMORY[dtype])
        g[:, first : first + heads * v] = normal(rng, (tokens, heads * v), dtype, 2.0)
        want = want * sigmoid(g[:, first : first + heads * v].astype(np.float64))
        arguments["g"] = g
    arguments["o"] = poisoned(want.shape, dtype)
    return Case(arguments, {"o": want}, TOLERANCE[dtype])


def _attention(params: Params, arguments: dict[str, Array]) -> Array:
    """Sequence by sequence in float64: -> ``[T, heads, v]``."""
    heads, nope, rope = params["heads"], params["nope"], params["rope"]
    q, kv = (arguments[name].astype(np.float64) for name in ("q", "kv"))
    kv = kv.reshape(len(kv), heads, nope + params["v"]).transpose(1, 0, 2)
    kp = arguments["latent"][:, params["kv_lora"] :].astype(np.float64)
    kp = np.broadcast_to(kp, (heads, *kp.shape))
    keys = np.concatenate([kv[..., :nope], kp], axis=2) * (nope + rope) ** -0.5
    rows, spans = (list(pairwise(arguments[n].tolist())) for n in ("seq_start", "kv_start"))
    out = []
    for (a, b), (c, d), context in zip(rows, spans, arguments["seq_ctx"].tolist(), strict=True):
        scores = q[a:b].transpose(1, 0, 2) @ keys[:, c:d].transpose(0, 2, 1)
        out.append((causal_weights(scores, context) @ kv[:, c:d, nope:]).transpose(1, 0, 2))
    return np.concatenate(out)
