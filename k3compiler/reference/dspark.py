"""The DSpark draft: seven tokens proposed at once, then corrected in sequence (spec section 9).

The draft reads the target's running sums P at a few layers. Per verified position they become one
row, which enters every draft layer as a key and value only. A block of queries (the anchor token and
masks) attends to all those rows and to itself, both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from k3compiler.draft_config import DraftConfig, yarn_frequencies
from k3compiler.reference.activations import sigmoid, softmax, swiglu
from k3compiler.reference.linear import embed, linear
from k3compiler.reference.mla import split_kv_b
from k3compiler.reference.moe import gated_mlp
from k3compiler.reference.norms import rms_norm

Array = NDArray[Any]
TARGET_HEAD = "lm_head.weight"


def rotate_pairs(x: Array, positions: Array, frequencies: Array) -> Array:
    """RoPE on interleaved pairs ``(x_2i, x_2i+1)``.

    Shapes: ``x [T, ..., R]``, ``positions [T]``, ``frequencies [R/2]`` -> like ``x``.
    """
    angle = positions[:, None] * frequencies
    shape = (len(x), *(1,) * (x.ndim - 2), -1)
    cos, sin = (f(angle).astype(x.dtype).reshape(shape) for f in (np.cos, np.sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    pairs = np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return pairs.reshape(x.shape)


@dataclass(slots=True)
class DraftCache:
    """Rows ``[N, kv_lora + rope]`` per draft layer, one per verified target position."""

    rows: list[Array]

    @property
    def num_tokens(self) -> int:
        return len(self.rows[0])


@dataclass(frozen=True, slots=True)
class Proposal:
    """``tokens [block]`` proposed, ``logits [block, vocab]`` corrected, ``confidence [block]``."""

    tokens: Array
    logits: Array
    confidence: Array


class DraftModel:
    """The draft in numpy.

    Args:
        config: its shape.
        weights: its own tensors by name (spec 9.2), and the target's ``lm_head.weight``.
        dtype: float64 or float32, used throughout.
    """

    def __init__(
        self, config: DraftConfig, weights: Mapping[str, Array], dtype: DTypeLike = np.float64
    ) -> None:
        self.config, self._dtype = config, np.dtype(dtype)
        self._weights = {n: np.asarray(w).astype(dtype) for n, w in weights.items()}
        self._frequencies = yarn_frequencies(config.rope, config.rope_dim)

    def new_cache(self) -> DraftCache:
        """No verified position yet."""
        empty = np.zeros((0, self.config.row_dim), self._dtype)
        return DraftCache([empty] * self.config.num_layers)

    def extend(self, cache: DraftCache, taps: Array) -> None:
        """Append verified positions: ``taps [T, layers, target_dim]``, layers ascending."""
        positions = cache.num_tokens + np.arange(len(taps))
        flat = taps.reshape(len(taps), -1).astype(self._dtype)
        c = self._norm(linear(flat, self._weights["context_proj.weight"]), "context_norm")
        cache.rows = [
            np.concatenate([old, self._latent_rows(f"layers.{n}.self_attn", c, positions)])
            for n, old in enumerate(cache.rows)
        ]

    def propose(self, anchor: int, cache: DraftCache) -> Proposal:
        """Draft greedily behind ``anchor``, the token at position ``cache.num_tokens``."""
        hidden = self.block_hidden(anchor, cache)
        base = linear(hidden, self._weights[TARGET_HEAD])
        w1, w2 = (self._weights[f"markov_head.markov_{w}"] for w in ("w1", "w2"))
        tokens, logits, features = list[int](), list[Array](), list[Array]()
        previous = anchor
        for row, h in zip(base, hidden, strict=True):
            features.append(np.concatenate([h, w1[previous]]))
            logits.append(row + w2 @ w1[previous])
            previous = int(logits[-1].argmax())
            tokens.append(previous)
        return Proposal(np.array(tokens), np.stack(logits), self.confidence(np.stack(features)))

    def confidence(self, features: Array) -> Array:
        """``sigmoid(W [h | markov_w1[prev]] + b)``: ``features [T, D + rank]`` -> ``[T]``."""
        w, b = (self._weights[f"confidence_head.proj.{p}"] for p in ("weight", "bias"))
        return sigmoid(linear(features, w)[:, 0] + b)

    def block_hidden(self, anchor: int, cache: DraftCache) -> Array:
        """The normed hidden rows of the query block: ``[block, D]``."""
        c = self.config
        ids = np.array([anchor] + [c.mask_id] * (c.block - 1))
        positions = cache.num_tokens + np.arange(c.block)
        x = embed(ids, self._weights["embed_tokens.weight"])
        for n in range(c.num_layers):
            name = f"layers.{n}"
            y = self._norm(x, f"{name}.input_layernorm")
            x = x + self._attention(f"{name}.self_attn", y, cache.rows[n], positions)
            y = self._norm(x, f"{name}.post_attention_layernorm")
            gate, up, down = (
                self._weights[f"{name}.mlp.{p}_proj.weight"] for p in ("gate", "up", "down")
            )
            x = x + gated_mlp(y, gate, up, down, swiglu)
        return self._norm(x, "final_norm")

    def _norm(self, x: Array, name: str) -> Array:
        return rms_norm(x, self._weights[f"{name}.weight"], self.config.rms_eps)

    def _latent_rows(self, name: str, x: Array, positions: Array) -> Array:
        """``[latent | rotated rope key]`` of rows ``x [T, D]``."""
        rank = self.config.kv_lora_rank
        kv = linear(x, self._weights[f"{name}.kv_a_proj_with_mqa.weight"])
        latent = self._norm(kv[:, :rank], f"{name}.kv_a_layernorm")
        return np.concatenate(
            [latent, rotate_pairs(kv[:, rank:], positions, self._frequencies)], axis=1
        )

    def _attention(self, name: str, x: Array, context: Array, positions: Array) -> Array:
        """Every query sees all context rows and the whole block."""
        c = self.config
        latent_q = self._norm(
            linear(x, self._weights[f"{name}.q_a_proj.weight"]), f"{name}.q_a_layernorm"
        )
        q = linear(latent_q, self._weights[f"{name}.q_b_proj.weight"])
        q = q.reshape(len(x), c.num_heads, -1)
        q_rope = rotate_pairs(q[..., c.nope_dim :], positions, self._frequencies)
        rows = np.concatenate([context, self._latent_rows(name, x, positions)])
        latent, rope_key = rows[:, : c.kv_lora_rank], rows[:, c.kv_lora_rank :]
        kv_b = self._weights[f"{name}.kv_b_proj.weight"]
        w_uk, w_uv = split_kv_b(kv_b, c.num_heads, c.nope_dim)
        k_nope = np.einsum("nr,hdr->hnd", latent, w_uk)
        v = np.einsum("nr,hdr->hnd", latent, w_uv)
        scores = np.einsum("thd,hnd->htn", q[..., : c.nope_dim], k_nope)
        scores = (scores + np.einsum("thd,nd->htn", q_rope, rope_key)) * c.softmax_scale
        o = np.einsum("htn,hnd->thd", softmax(scores, axis=-1), v)
        return linear(o.reshape(len(x), -1), self._weights[f"{name}.o_proj.weight"])


def accepted_prefix(proposed: Array, target: Array) -> int:
    """Greedy verification: how many proposals equal the target's own choices (spec 9.4).

    ``proposed [n]``, ``target [>= n]`` the target's argmax after the anchor and each proposal. The
    target's next choice comes on top: a step emits this number plus one.
    """
    is_equal = np.asarray(proposed) == np.asarray(target)[: len(proposed)]
    return len(is_equal) if is_equal.all() else int(is_equal.argmin())
