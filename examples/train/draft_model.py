"""The DSpark draft in torch for training (spec section 9): many blocks of a sequence at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.train.model import Embed, rms
from examples.train.weights import Layout, Parameters, Part
from k3compiler.config import ModelConfig
from k3compiler.draft_config import (
    DraftConfig,
    RopeConfig,
    draft_tensors,
    yarn_frequencies,
)

EMBED = "embed_tokens.weight"  # the target's own, frozen
MASK_OFFSET = 253  # of the mask's slot among the special tokens, as in the released draft
ROPE = RopeConfig(50000.0, 1.0, 1, 32, 1, 1, 0)
ALIGN = 8  # columns of a score row, for its products' sake
GAINS = {"o_proj": 0.5, "down_proj": 0.5}  # of what writes to the residual
ZEROS = ("markov_w2", "bias", "confidence_head.proj")
MARKOV_SIZE = 0.3


def nano_draft_config(target: ModelConfig) -> DraftConfig:
    """The draft of k3-nano: its taps are what the target's last mix reads (spec 2.4)."""
    return _draft_config(target, 512, 3, (3, 7, 11, 13), 4, 96, 128, 64, 32, 64, 64)


def smoke_draft_config(target: ModelConfig) -> DraftConfig:
    """The draft of the smoke test's target."""
    return _draft_config(target, 96, 2, (1, 3, 4), 2, 32, 32, 16, 16, 16, 16)


def _draft_config(
    target: ModelConfig,
    ffn: int,
    layers: int,
    taps: tuple[int, ...],
    heads: int,
    q_rank: int,
    kv_rank: int,
    nope: int,
    rope: int,
    v: int,
    markov_rank: int,
) -> DraftConfig:
    assert target.pad_id is not None
    return DraftConfig(
        hidden_dim=target.hidden_dim,
        ffn_dim=ffn,
        num_layers=layers,
        num_heads=heads,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        nope_dim=nope,
        rope_dim=rope,
        v_dim=v,
        rope=ROPE,
        rms_eps=target.rms_eps,
        target_layers=taps,
        target_dim=target.hidden_dim,
        block=7,
        mask_id=target.pad_id - 255 + MASK_OFFSET,
        markov_rank=markov_rank,
        vocab_size=target.vocab_size,
    )


class DraftLayout(Layout):
    """The draft's tensors; a stack is one matrix of every layer."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        for name, shape in draft_tensors(config).items():
            pieces = name.split(".", 2)
            if name == EMBED:
                continue
            if pieces[0] != "layers" or len(shape) == 1:
                is_f32 = len(shape) == 1 or name.startswith("confidence_head")
                self._alone(name, shape, keep=is_f32)
                continue
            self.parts[name] = Part(pieces[2], 0, shape[0], shape, int(pieces[1]))
            self.fused[pieces[2]] = (config.num_layers, *shape)
            self.stacks.add(pieces[2])


def new_draft_parameters(
    config: DraftConfig, device: torch.device, dtype: torch.dtype, seed: int
) -> Parameters:
    """Parameters from the seed (drawn on the CPU, so alike on every device)."""
    parameters = Parameters(DraftLayout(config), device, dtype)
    source = torch.Generator().manual_seed(seed)
    for name, view in parameters.parts():
        view.copy_(_initial(name, torch.randn(view.shape, generator=source)))
    parameters.publish()
    return parameters


def _initial(name: str, noise: Tensor) -> Tensor:
    stem = name.removesuffix(".weight")
    leaf = stem.rsplit(".", 1)[-1]
    if stem.endswith(ZEROS):
        return torch.zeros_like(noise)
    if noise.dim() == 1:  # every other vector is a norm's weight
        return torch.ones_like(noise)
    if leaf == "markov_w1":
        return MARKOV_SIZE * noise
    return GAINS.get(leaf, 1.0) * noise * noise.shape[-1] ** -0.5


class DraftNet:
    """Forward passes of the draft.

    Args:
        config: its shape.
        parameters: its own tensors.
        embed, head: the target's token table and output matrix ``[vocab, D]``, frozen.
    """

    def __init__(
        self, config: DraftConfig, parameters: Parameters, embed: Tensor, head: Tensor
    ) -> None:
        self.config, self.parameters = config, parameters
        self.embed, self.head = embed.detach(), head.detach()
        frequencies = yarn_frequencies(config.rope, config.rope_dim)
        self._frequencies = torch.tensor(frequencies, dtype=torch.float32, device=embed.device)
        self._span = torch.arange(config.block, device=embed.device)

    def hidden(self, taps: Tensor, anchors: Tensor, tokens: Tensor) -> Tensor:
        """Normed hidden rows of the blocks at ``anchors``, each seeing the rows before its anchor.

        Shapes: ``taps [B, T, layers * D]``, ``anchors [B, A]`` (positions, from 1), ``tokens
        [B, A]`` (the anchors' ids) -> ``[B, A, block, D]``.
        """
        c, count = self.config, anchors.shape[1]
        projected = F.linear(taps, self.parameters["context_proj.weight"])
        context = self._norm(projected, "context_norm")
        masks = self.embed[c.mask_id].expand(*anchors.shape, c.block - 1, -1)
        x = torch.cat([self.embed[tokens][:, :, None], masks], dim=2).flatten(1, 2)
        positions = (anchors[..., None] + self._span).flatten(1)
        unknown = torch.arange(taps.shape[1], device=taps.device) >= anchors[..., None]
        hides = unknown[:, :, None].expand(-1, -1, c.block, -1).flatten(1, 2)[:, None]
        for n in range(c.num_layers):
            y = self._norm(x, f"layers.{n}.input_layernorm")
            x = x + self._attention(n, y, context, positions, hides)
            y = self._norm(x, f"layers.{n}.post_attention_layernorm")
            gate, up = (F.linear(y, self._stack(f"mlp.{p}_proj.weight", n)) for p in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, self._stack("mlp.down_proj.weight", n))
        return self._norm(x, "final_norm").unflatten(1, (count, c.block))

    def logits(self, hidden: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Logits after the Markov term, and confidence logits (of ``hidden`` as a constant).

        Shapes: ``hidden [N, D]``, ``previous [N]`` (the token before the drafted one) ->
        ``[N, vocab]``, ``[N] f32``.
        """
        p = self.parameters
        row = Embed.apply(previous, p["markov_head.markov_w1"])
        logits = F.linear(hidden, self.head) + F.linear(row, p["markov_head.markov_w2"])
        features = torch.cat([hidden, row], dim=-1).detach().float()
        w, b = p["confidence_head.proj.weight"], p["confidence_head.proj.bias"]
        return logits, F.linear(features, w, b)[:, 0]

    @torch.no_grad()
    def propose(self, taps: Tensor, anchors: Tensor, tokens: Tensor) -> Tensor:
        """Greedy drafts behind every anchor: shapes as :meth:`hidden` -> ``[B, A, block]``."""
        hidden = self.hidden(taps, anchors, tokens)
        drafts: list[Tensor] = [tokens]
        for n in range(self.config.block):
            logits, _ = self.logits(hidden[:, :, n].flatten(0, 1), drafts[-1].reshape(-1))
            drafts.append(logits.argmax(-1).view_as(tokens))
        return torch.stack(drafts[1:], dim=-1)

    def _stack(self, name: str, layer: int) -> Tensor:
        return self.parameters[name][layer]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms(x, self.parameters[f"{name}.weight"], self.config.rms_eps)

    def _keys_values(self, n: int, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """``x [B, S, D]``, ``positions [S] or [B, S]`` -> keys, values ``[B, H, S, ...]``."""
        c, name = self.config, f"layers.{n}.self_attn"
        kv = F.linear(x, self._stack("self_attn.kv_a_proj_with_mqa.weight", n))
        latent = self._norm(kv[..., : c.kv_lora_rank], f"{name}.kv_a_layernorm")
        rope = rotate_pairs(kv[..., c.kv_lora_rank :], positions, self._frequencies)
        wide = F.linear(latent, self._stack("self_attn.kv_b_proj.weight", n))
        wide = wide.unflatten(-1, (c.num_heads, -1)).transpose(1, 2)
        k_nope, v = wide.split([c.nope_dim, c.v_dim], dim=-1)
        k = torch.cat([k_nope, rope[:, None].expand(-1, c.num_heads, -1, -1)], dim=-1)
        return k, v

    def _attention(
        self, n: int, x: Tensor, context: Tensor, positions: Tensor, hides: Tensor
    ) -> Tensor:
        """A query sees the context rows before its anchor and its whole block."""
        c = self.config
        low = F.linear(x, self._stack("self_attn.q_a_proj.weight", n))
        low = self._norm(low, f"layers.{n}.self_attn.q_a_layernorm")
        q = F.linear(low, self._stack("self_attn.q_b_proj.weight", n))
        q = q.unflatten(-1, (c.num_heads, -1))
        rope = rotate_pairs(q[..., c.nope_dim :], positions[..., None], self._frequencies)
        q = torch.cat([q[..., : c.nope_dim], rope], dim=-1).transpose(1, 2) * c.softmax_scale
        span = torch.arange(context.shape[1], device=x.device)
        k, v = self._keys_values(n, context, span)
        own_k, own_v = self._keys_values(n, x, positions)
        blocks = (-1, c.block)
        own = q.unflatten(2, blocks) @ own_k.unflatten(2, blocks).mT
        scores = (q @ k.mT).masked_fill(hides, float("-inf"))
        own = F.pad(own.flatten(2, 3), (0, -c.block % ALIGN), value=float("-inf"))
        both = torch.cat([scores, own], dim=-1)
        weights = torch.softmax(both, dim=-1, dtype=torch.float32).to(x.dtype)
        far, near = weights[..., : k.shape[2]], weights[..., k.shape[2] :][..., : c.block]
        near_o = near.unflatten(2, blocks) @ own_v.unflatten(2, blocks)
        o = (far @ v + near_o.flatten(2, 3)).transpose(1, 2).flatten(2)
        return F.linear(o, self._stack("self_attn.o_proj.weight", n))


def rotate_pairs(x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """RoPE on interleaved pairs: ``x [..., R]``, ``positions`` like x's leading dimensions."""
    angle = positions[..., None] * frequencies
    cos, sin = torch.cos(angle), torch.sin(angle)
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return pairs.flatten(-2).to(x.dtype)
