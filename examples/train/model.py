"""The text model in torch for training: spec sections 2 to 5, whole sequences from empty states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from examples.train.compiled import fused
from examples.train.kda import kda_chunked, kda_inputs, kda_outputs
from examples.train.moe import (
    ROWS,
    Collect,
    ExpertLinear,
    SlotWeights,
    Spread,
    make_plan,
    route,
    situ,
    weighted_situ,
)
from examples.train.weights import Weights
from k3compiler.config import LORA_NORM_EPS


@dataclass(slots=True)
class Trace:
    """What a forward pass leaves for others: router scores and loads, and tapped running sums.

    ``taps`` names the layers whose running sum P (after the layer) is kept in ``tapped``.
    """

    taps: tuple[int, ...] = ()
    tapped: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    scores: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    loads: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """RMSNorm in float32, in the type of x."""
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)


fused_rms = fused(rms)


@fused
def mix_norm(
    candidates: list[Tensor], site_norm: Tensor, site_proj: Tensor, norm: Tensor, eps: float
) -> Tensor:
    """AttnRes mix (spec 2.3) and the norm behind it: candidates ``[T, D]`` -> ``[T, D]``."""
    query = site_norm.float() * site_proj.float().reshape(-1)
    wide = [c.float() for c in candidates]
    scores = [
        (c * query).sum(-1, keepdim=True) * torch.rsqrt((c * c).mean(-1, keepdim=True) + eps)
        for c in wide
    ]
    weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
    mixed = wide[0] * weights[:, 0:1]
    for n in range(1, len(wide)):
        mixed = mixed + wide[n] * weights[:, n : n + 1]
    y = mixed * torch.rsqrt((mixed * mixed).mean(-1, keepdim=True) + eps) * norm.float()
    return y.to(candidates[0].dtype)


class Embed(Function):
    """Rows of the table; the backward pass is a product with the one-hot matrix, so sums keep
    their order and a CUDA graph can hold it."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows = len(table)
        return table[tokens]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (tokens,) = ctx.saved_tensors
        rows = torch.arange(ctx.rows, device=tokens.device)
        return None, (rows[:, None] == tokens).to(grads[0].dtype) @ grads[0]


class Model:
    """Forward passes over :class:`Weights`; tokens ``[B, T]``, T a multiple of 64."""

    def __init__(self, weights: Weights) -> None:
        self.weights, self.config = weights, weights.config

    def hidden(self, tokens: Tensor, trace: Trace | None = None) -> Tensor:
        """The normed final hidden rows: ``[B, T]`` -> ``[B*T, D]``."""
        c, w = self.config, self.weights
        trace = trace or Trace()
        block = c.attn_res_block
        assert block is not None
        running = Embed.apply(tokens.reshape(-1), w["model.embed_tokens.weight"])
        snapshots: list[Tensor] = []
        for layer in range(c.num_layers):
            name = f"model.layers.{layer}"
            x = self._mix(
                [*snapshots, running], f"{name}.self_attention_res", f"{name}.input_layernorm"
            )
            starts_block = layer % block == 0
            if starts_block:
                snapshots.append(running)
            mixer = self._mla if c.is_mla(layer) else self._kda
            a = mixer(f"{name}.self_attn", x, tokens.shape)
            running = a if starts_block else running + a
            site = f"{name}.mlp_res"
            y = self._mix([*snapshots, running], site, f"{name}.post_attention_layernorm")
            running = running + self._ffn(name, layer, y, trace)
            if layer in trace.taps:
                trace.tapped[layer] = running
        return self._mix([*snapshots, running], "model.output_attn_res", "model.norm")

    def logits(self, tokens: Tensor, trace: Trace | None = None) -> Tensor:
        """``[B, T]`` -> ``[B*T, vocab]`` in the computing type."""
        return F.linear(self.hidden(tokens, trace), self.weights["lm_head.weight"])

    def _mix(self, candidates: list[Tensor], site: str, norm: str) -> Tensor:
        w, eps = self.weights, self.config.rms_eps
        norm_w = w[f"{norm}.weight"]
        if len(candidates) == 1:
            return fused_rms(candidates[0], norm_w, eps)
        return mix_norm(candidates, w[f"{site}_norm.weight"], w[f"{site}_proj.weight"], norm_w, eps)

    def _kda(self, name: str, x: Tensor, shape: torch.Size) -> Tensor:
        c, w = self.config.kda, self.weights
        width, heads = c.num_heads * c.head_dim, c.num_heads
        assert c.gate_lower_bound is not None
        u = F.linear(x, w[f"{name}.in"])
        first = 3 * width + heads
        f = F.linear(u[:, first : first + c.head_dim], w[f"{name}.f_b_proj.weight"])
        gate = u[:, first + c.head_dim : first + c.head_dim + width]
        inputs = kda_inputs(
            u.view(*shape, -1),
            f.view(*shape, -1),
            w[f"{name}.conv"][: 3 * width, 0],
            w[f"{name}.A_log"][:heads],
            w[f"{name}.dt_bias"],
            c.gate_lower_bound,
        )
        o = kda_chunked(*inputs)
        o_norm = w[f"{name}.o_norm.weight"]
        y = kda_outputs(o, gate.view(*shape, -1), o_norm, self.config.rms_eps)
        return F.linear(y.reshape(-1, width), w[f"{name}.o_proj.weight"])

    def _mla(self, name: str, x: Tensor, shape: torch.Size) -> Tensor:
        c, w = self.config.mla, self.weights
        assert c.q_lora_rank is not None and c.output_gate
        u = F.linear(x, w[f"{name}.in"])
        q_a, kv_a, rope_key, gate = u[:, : self._mla_width].split(
            [c.q_lora_rank, c.kv_lora_rank, c.rope_dim, c.num_heads * c.v_dim], dim=1
        )
        q_latent = fused_rms(q_a, w[f"{name}.q_a_layernorm.weight"], LORA_NORM_EPS)
        kv_latent = fused_rms(kv_a, w[f"{name}.kv_a_layernorm.weight"], LORA_NORM_EPS)
        q = F.linear(q_latent, w[f"{name}.q_b_proj.weight"])
        kv = F.linear(kv_latent, w[f"{name}.kv_b_proj.weight"])
        q = q.view(*shape, c.num_heads, -1).transpose(1, 2)
        k_nope, v = (
            kv.view(*shape, c.num_heads, -1).transpose(1, 2).split([c.nope_dim, c.v_dim], dim=-1)
        )
        rope = rope_key.view(shape[0], 1, shape[1], -1).expand(-1, c.num_heads, -1, -1)
        k = torch.cat([k_nope, rope], dim=-1)
        wide = F.pad(v, (0, k.shape[-1] - c.v_dim))  # one head size, as the fast kernels want
        o = F.scaled_dot_product_attention(q, k, wide, is_causal=True)[..., : c.v_dim]
        o = o.transpose(1, 2).reshape(len(x), -1)
        return F.linear(gated(o, gate), w[f"{name}.o_proj.weight"])

    @property
    def _mla_width(self) -> int:
        c = self.config.mla
        assert c.q_lora_rank is not None
        return c.q_lora_rank + c.kv_lora_rank + c.rope_dim + c.num_heads * c.v_dim

    def _ffn(self, name: str, layer: int, y: Tensor, trace: Trace) -> Tensor:
        if self.config.is_dense(layer):
            return self._mlp(f"{name}.mlp", y)
        return self._moe(f"{name}.block_sparse_moe", y, trace)

    def _mlp(self, name: str, y: Tensor) -> Tensor:
        h = situ(F.linear(y, self.weights[f"{name}.gate_up"]), *self._betas)
        return F.linear(h, self.weights[f"{name}.down_proj.weight"])

    @property
    def _betas(self) -> tuple[float, float]:
        assert self.config.situ_linear_beta is not None
        return self.config.situ_beta, self.config.situ_linear_beta

    def _moe(self, name: str, y: Tensor, trace: Trace) -> Tensor:
        c, w = self.config.moe, self.weights
        assert c is not None
        logits = F.linear(y.float(), w[f"{name}.gate.weight"].float())
        ids, weights, scores = route(logits, w.bias[name], c.top_k, c.renormalize)
        plan = make_plan(ids, c.num_experts)
        trace.scores[name], trace.loads[name] = scores.detach(), plan.load
        z = F.linear(y, w[f"{name}.routed_expert_down_proj.weight"])
        rows = Spread.apply(z, plan.source, plan.place, c.top_k).view(-1, ROWS, z.shape[1])
        h = ExpertLinear.apply(rows, w[f"{name}.w13"], plan.expert)
        slot = SlotWeights.apply(weights, plan.source, plan.is_used, plan.place)
        h = weighted_situ(h, slot.view(-1, ROWS), *self._betas)
        out = ExpertLinear.apply(h, w[f"{name}.w2"], plan.expert).view(-1, z.shape[1])
        r = Collect.apply(out, plan.source, plan.is_used, plan.place, c.top_k)
        r = fused_rms(r, w[f"{name}.routed_expert_norm.weight"], self.config.rms_eps)
        up = F.linear(r, w[f"{name}.routed_expert_up_proj.weight"])
        return up + self._mlp(f"{name}.shared_experts", y)


@fused
def gated(o: Tensor, gate: Tensor) -> Tensor:
    """``o sigmoid(gate)``."""
    return (o.float() * torch.sigmoid(gate.float())).to(o.dtype)


@fused
def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy per row in float32: ``[N, vocab]``, ``[N]`` -> ``[N]``."""
    wide = logits.float()
    chosen = wide.gather(1, targets[:, None]).squeeze(1)
    return torch.logsumexp(wide, dim=1) - chosen
