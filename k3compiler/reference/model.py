"""The whole text model, layer by layer, as spec sections 2 to 5 say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from k3compiler.config import LORA_NORM_EPS, ModelConfig
from k3compiler.reference import kda, mla, moe
from k3compiler.reference.activations import gated_activation, sigmoid, silu
from k3compiler.reference.attn_res import attn_res_mix
from k3compiler.reference.linear import embed, linear
from k3compiler.reference.norms import gated_rms_norm, l2_normalize, rms_norm
from k3compiler.reference.weights import ExpertMatrices, ReferenceWeights

Array = NDArray[Any]


@dataclass(slots=True)
class Cache:
    """Everything that crosses steps, by 0-based layer; an empty cache is an empty sequence.

    Shapes: ``kda_state[l] [H, V, K]``, ``kda_conv[l] [W-1, 3*H*K]`` (pre-conv inputs, oldest
    first, channels q|k|v), ``mla_rows[l] [num_tokens, kv_lora + rope]``.
    """

    num_tokens: int = 0
    kda_state: dict[int, Array] = field(default_factory=dict[int, Array])
    kda_conv: dict[int, Array] = field(default_factory=dict[int, Array])
    mla_rows: dict[int, Array] = field(default_factory=dict[int, Array])


@dataclass(slots=True)
class ExpertChoices:
    """Expert ids by layer: ``forced[l] [T, k]`` go in, ``chosen[l] [T, k]`` come out.

    A layer absent from ``forced`` routes by itself. Weights are always this model's own scores.
    """

    forced: Mapping[int, Array] = field(default_factory=dict[int, Array])
    chosen: dict[int, Array] = field(default_factory=dict[int, Array])


class ReferenceModel:
    """Logits in numpy; ``dtype`` is float64 or float32 and used throughout.

    ``weights`` are checkpoint tensors by name (prefix and legacy spellings allowed, experts packed
    or plain).
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Array], dtype: DTypeLike = np.float64
    ) -> None:
        self.config = config
        self.weights = ReferenceWeights(weights, dtype)
        self._act = gated_activation(config)

    def new_cache(self) -> Cache:
        """The cache of an empty sequence."""
        return Cache()

    def forward(
        self,
        tokens: Array | list[int],
        cache: Cache | None = None,
        *,
        choices: ExpertChoices | None = None,
    ) -> Array:
        """Logits at every position: ``tokens [T]`` -> ``[T, vocab]``.

        ``cache`` is updated in place, so that calls with consecutive pieces of a sequence give
        the same logits as one call.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        cache = self.new_cache() if cache is None else cache
        x = embed(ids, self.weights["model.embed_tokens.weight"])
        hidden = self._decoder(x, cache, choices or ExpertChoices())
        cache.num_tokens += len(ids)
        y = rms_norm(hidden, self.weights["model.norm.weight"], self.config.rms_eps)
        head = "model.embed_tokens.weight" if self.config.tie_embeddings else "lm_head.weight"
        return linear(y, self.weights[head])

    def _decoder(self, x: Array, cache: Cache, choices: ExpertChoices) -> Array:
        if self.config.attn_res_block is None:
            return self._plain_residuals(x, cache, choices)
        return self._attention_residuals(x, cache, choices, self.config.attn_res_block)

    def _plain_residuals(self, x: Array, cache: Cache, choices: ExpertChoices) -> Array:
        for layer in range(self.config.num_layers):
            x = x + self.mixer(layer, x, cache)
            x = x + self.ffn(layer, x, choices)
        return x

    def _attention_residuals(
        self, x: Array, cache: Cache, choices: ExpertChoices, block: int
    ) -> Array:
        """The state machine of spec 2.4: running sum and snapshots of it."""
        running, snapshots = x, list[Array]()
        for layer in range(self.config.num_layers):
            name = f"model.layers.{layer}"
            h = self._mix(f"{name}.self_attention_res", [*snapshots, running])
            starts_block = layer % block == 0
            if starts_block:
                snapshots.append(running)
            a = self.mixer(layer, h, cache)
            running = a if starts_block else running + a
            h = self._mix(f"{name}.mlp_res", [*snapshots, running])
            running = running + self.ffn(layer, h, choices)
        return self._mix("model.output_attn_res", [*snapshots, running])

    def _mix(self, site: str, candidates: list[Array]) -> Array:
        if len(candidates) == 1:
            return candidates[0]
        norm_w, proj_w = self.weights[f"{site}_norm.weight"], self.weights[f"{site}_proj.weight"]
        return attn_res_mix(candidates, norm_w, proj_w, self.config.rms_eps)

    def mixer(self, layer: int, h: Array, cache: Cache) -> Array:
        """Input norm, then KDA or MLA: ``h [T, D]`` -> ``[T, D]``; updates the cache."""
        norm_w = self.weights[f"model.layers.{layer}.input_layernorm.weight"]
        x = rms_norm(h, norm_w, self.config.rms_eps)
        return (
            self._mla(layer, x, cache) if self.config.is_mla(layer) else self._kda(layer, x, cache)
        )

    def ffn(self, layer: int, h: Array, choices: ExpertChoices) -> Array:
        """Post-attention norm, then the dense FFN or the MoE: ``h [T, D]`` -> ``[T, D]``."""
        name = f"model.layers.{layer}"
        y = rms_norm(
            h, self.weights[f"{name}.post_attention_layernorm.weight"], self.config.rms_eps
        )
        if self.config.is_dense(layer):
            return self._mlp(f"{name}.mlp", y)
        return self._moe(layer, y, choices)

    def _linear(self, x: Array, name: str) -> Array:
        return linear(x, self.weights[f"{name}.weight"])

    def _kda(self, layer: int, x: Array, cache: Cache) -> Array:
        """Spec section 3; q, k and v go through the convolution together."""
        c, name = self.config.kda, f"model.layers.{layer}.self_attn"
        heads = (len(x), c.num_heads, -1)
        u = np.concatenate([self._linear(x, f"{name}.{p}_proj") for p in "qkv"], axis=1)
        taps = [self.weights[f"{name}.{p}_conv1d.weight"] for p in "qkv"]
        y, cache.kda_conv[layer] = kda.short_conv(
            u, np.concatenate(taps), cache.kda_conv.get(layer)
        )
        q, k, v = (part.reshape(heads) for part in np.split(silu(y), 3, axis=1))
        scale = x.dtype.type(c.head_dim) ** -0.5
        f = self._linear(self._linear(x, f"{name}.f_a_proj"), f"{name}.f_b_proj").reshape(heads)
        a_log, dt_bias = self.weights[f"{name}.A_log"], self.weights[f"{name}.dt_bias"]
        o, cache.kda_state[layer] = kda.kda_recurrence(
            l2_normalize(q) * scale,
            l2_normalize(k),
            v,
            kda.kda_gate(f, a_log, dt_bias, c.gate_lower_bound),
            sigmoid(self._linear(x, f"{name}.b_proj")),
            cache.kda_state.get(layer),
        )
        o_norm = self.weights[f"{name}.o_norm.weight"]
        gated = gated_rms_norm(
            o, o_norm, self._kda_out_gate(name, x).reshape(heads), self.config.rms_eps
        )
        return self._linear(gated.reshape(len(x), -1), f"{name}.o_proj")

    def _kda_out_gate(self, name: str, x: Array) -> Array:
        if self.config.kda.full_rank_gate:
            return self._linear(x, f"{name}.g_proj")
        return self._linear(self._linear(x, f"{name}.g_a_proj"), f"{name}.g_b_proj")

    def _mla(self, layer: int, x: Array, cache: Cache) -> Array:
        """Spec section 4, with expanded keys and values."""
        c, name = self.config.mla, f"model.layers.{layer}.self_attn"
        q = self._mla_query(name, x).reshape(len(x), c.num_heads, -1)
        rows = mla.mla_cache_rows(
            self._linear(x, f"{name}.kv_a_proj_with_mqa"),
            self.weights[f"{name}.kv_a_layernorm.weight"],
            LORA_NORM_EPS,
        )
        old = cache.mla_rows.get(layer)
        cache.mla_rows[layer] = rows = rows if old is None else np.concatenate([old, rows])
        kv_b = self.weights[f"{name}.kv_b_proj.weight"]
        w_uk, w_uv = mla.split_kv_b(kv_b, c.num_heads, c.nope_dim)
        o = mla.mla_attention(q, rows, w_uk, w_uv, cache.num_tokens).reshape(len(x), -1)
        if c.output_gate:
            o = mla.mla_output_gate(o, self._linear(x, f"{name}.g_proj"))
        return self._linear(o, f"{name}.o_proj")

    def _mla_query(self, name: str, x: Array) -> Array:
        if self.config.mla.q_lora_rank is None:
            return self._linear(x, f"{name}.q_proj")
        norm_w = self.weights[f"{name}.q_a_layernorm.weight"]
        latent = rms_norm(self._linear(x, f"{name}.q_a_proj"), norm_w, LORA_NORM_EPS)
        return self._linear(latent, f"{name}.q_b_proj")

    def _mlp(self, name: str, y: Array) -> Array:
        gate, up, down = (self.weights[f"{name}.{p}_proj.weight"] for p in ("gate", "up", "down"))
        return moe.gated_mlp(y, gate, up, down, self._act)

    def _moe(self, layer: int, y: Array, choices: ExpertChoices) -> Array:
        """Spec section 5; router and shared experts read y, routed experts its latent."""
        c, name = self.config.moe, f"model.layers.{layer}.block_sparse_moe"
        assert c is not None
        ids, weights = self._route(layer, y, choices)
        choices.chosen[layer] = ids
        w1, w3, w2 = (
            ExpertMatrices(self.weights, f"model.layers.{layer}", m, c.num_experts)
            for m in ("w1", "w3", "w2")
        )
        z = y if c.latent_dim is None else self._linear(y, f"{name}.routed_expert_down_proj")
        r = moe.experts(z, ids, weights, w1, w3, w2, self._act)
        shared = self._mlp(f"{name}.shared_experts", y) if c.num_shared else np.zeros_like(y)
        if c.latent_dim is None:
            return r + shared
        norm_w = self.weights[f"{name}.routed_expert_norm.weight"] if c.latent_norm else None
        up_w = self.weights[f"{name}.routed_expert_up_proj.weight"]
        return moe.latent_tail(r, norm_w, up_w, shared, self.config.rms_eps)

    def _route(self, layer: int, y: Array, choices: ExpertChoices) -> tuple[Array, Array]:
        c, name = self.config.moe, f"model.layers.{layer}.block_sparse_moe.gate"
        assert c is not None
        gate_w = self.weights[f"{name}.weight"]
        bias = self.weights[f"{name}.e_score_correction_bias"]
        forced = choices.forced.get(layer)
        if forced is None:
            return moe.route(y, gate_w, bias, c.top_k, c.renormalize, c.scale)
        scores = sigmoid(linear(y, gate_w))
        return forced, moe.weigh_experts(scores, forced, c.renormalize, c.scale)
