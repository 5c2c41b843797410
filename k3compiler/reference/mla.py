"""Gated NoPE MLA (spec section 4), expanded and absorbed, over a cache of latent rows.

A cache row is ``[latent (kv_lora) | rope channels]``: the normed latent and the key channels
that all heads share, neither normed nor rotated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.reference.activations import sigmoid, softmax
from k3compiler.reference.norms import rms_norm

Array = NDArray[Any]


def split_kv_b(kv_b: Array, num_heads: int, nope_dim: int) -> tuple[Array, Array]:
    """kv_b_proj by head: ``[H*(nope+v), R]`` -> ``w_uk [H, nope, R]``, ``w_uv [H, v, R]``."""
    per_head = kv_b.reshape(num_heads, -1, kv_b.shape[1])
    return per_head[:, :nope_dim], per_head[:, nope_dim:]


def mla_cache_rows(kv_a: Array, norm_w: Array, eps: float) -> Array:
    """kv_a_proj_with_mqa's output ``[T, R+rope]`` with its first R columns normed (spec 4.1)."""
    rank = norm_w.shape[0]
    return np.concatenate([rms_norm(kv_a[:, :rank], norm_w, eps), kv_a[:, rank:]], axis=1)


def causal_weights(scores: Array, first_position: int) -> Array:
    """Softmax of ``scores [H, T, N]`` where query t sees rows ``0 .. first_position + t``."""
    rows = np.arange(scores.shape[2])
    limit = first_position + np.arange(scores.shape[1])[:, None]
    return softmax(np.where(rows <= limit, scores, -np.inf), axis=-1)


def mla_attention(q: Array, cache: Array, w_uk: Array, w_uv: Array, first_position: int) -> Array:
    """Keys and values expanded from the latents (spec 4.1).

    Shapes: ``q [T, H, nope+rope]``, ``cache [N, R+rope]`` (row = absolute position, the new
    tokens' rows included), ``w_uk [H, nope, R]``, ``w_uv [H, v, R]`` -> ``[T, H, v]``, before the
    output gate. ``first_position`` is the absolute position of query 0.
    """
    nope_dim, rank = w_uk.shape[1:]
    latent, rope_key = cache[:, :rank], cache[:, rank:]
    k_nope = np.einsum("nr,hdr->hnd", latent, w_uk)
    v = np.einsum("nr,hdr->hnd", latent, w_uv)
    rope_keys = np.broadcast_to(rope_key, (len(k_nope), *rope_key.shape))
    k = np.concatenate([k_nope, rope_keys], axis=2)
    scores = q.transpose(1, 0, 2) @ k.transpose(0, 2, 1) / np.sqrt(q.dtype.type(q.shape[2]))
    assert q.shape[2] == nope_dim + rope_key.shape[1]
    return (causal_weights(scores, first_position) @ v).transpose(1, 0, 2)


def mla_absorb_query(q: Array, w_uk: Array) -> Array:
    """``[q_nope W_uk | q_rope]``: ``q [T, H, nope+rope]`` -> ``[T, H, R+rope]`` (spec 4.3)."""
    nope_dim = w_uk.shape[1]
    q_latent = np.einsum("thd,hdr->thr", q[..., :nope_dim], w_uk)
    return np.concatenate([q_latent, q[..., nope_dim:]], axis=2)


def mla_latent_attention(
    q_latent: Array, cache: Array, rank: int, scale: float, first_position: int
) -> Array:
    """Attention among latents: ``q_latent [T, H, R+rope]`` -> ``o_latent [T, H, R]``.

    ``scale`` stays ``(nope+rope)^-0.5`` (spec 4.3).
    """
    scores = np.einsum("thr,nr->htn", q_latent, cache) * q_latent.dtype.type(scale)
    return np.einsum("htn,nr->thr", causal_weights(scores, first_position), cache[:, :rank])


def mla_attention_absorbed(
    q: Array, cache: Array, w_uk: Array, w_uv: Array, first_position: int
) -> Array:
    """The same numbers as :func:`mla_attention`, without expanding the cache (spec 4.3)."""
    o_latent = mla_latent_attention(
        mla_absorb_query(q, w_uk), cache, w_uk.shape[2], q.shape[2] ** -0.5, first_position
    )
    return np.einsum("thr,hdr->thd", o_latent, w_uv)


def mla_output_gate(o: Array, gate: Array) -> Array:
    """``o sigmoid(gate)`` on the raw attention output (spec 4.1); shapes alike."""
    return o * sigmoid(gate)
