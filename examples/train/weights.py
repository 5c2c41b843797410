"""The model's parameters: float32 masters in fused matrices, and the copies that compute.

A fused matrix holds several of the checkpoint's (``q|k|v|...`` by rows), so that one product serves
all; every checkpoint tensor is a view of a master. The computing copies are leaves: bf16 (experts
rounded to MXFP4 first), or float32 for what the checkpoint keeps in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.train.moe import fake_mxfp4
from k3compiler.config import ModelConfig

ALIGN = 16  # rows of a fused matrix: 16-byte rows of its product and more


@dataclass(frozen=True, slots=True)
class Part:
    """A checkpoint tensor inside a fused one: rows ``[start, end)``, of expert ``expert``."""

    fused: str
    start: int
    end: int
    shape: tuple[int, ...]
    expert: int | None = None

    def view(self, tensor: Tensor) -> Tensor:
        """This part of the fused tensor (or of its gradient)."""
        whole = tensor if self.expert is None else tensor[self.expert]
        return whole[self.start : self.end].view(self.shape)


class Layout:
    """Names and shapes: ``fused`` by its own name, ``parts`` by checkpoint name.

    ``stacks`` are fused tensors ``[n, rows, cols]``, each a batch of equal matrices.
    """

    def __init__(self) -> None:
        self.fused: dict[str, tuple[int, ...]] = {}
        self.parts: dict[str, Part] = {}
        self.kept_f32: set[str] = set()
        self.stacks: set[str] = set()

    def _alone(self, name: str, shape: tuple[int, ...], *, keep: bool = False) -> None:
        self._rows(name, [(name, shape)], keep=keep, align=1)

    def _rows(
        self,
        fused: str,
        parts: list[tuple[str, tuple[int, ...]]],
        *,
        keep: bool = False,
        align: int = ALIGN,
    ) -> None:
        start = 0
        for name, shape in parts:
            self.parts[name] = Part(fused, start, start + shape[0], shape)
            start += shape[0]
        rows = -(-start // align) * align
        self.fused[fused] = (rows, *parts[0][1][1:])
        if keep:
            self.kept_f32.add(fused)


class ModelLayout(Layout):
    """The target's; its stacks are the experts."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._config = config
        c = config
        self._alone("model.embed_tokens.weight", (c.vocab_size, c.hidden_dim))
        self._alone("lm_head.weight", (c.vocab_size, c.hidden_dim))
        self._alone("model.norm.weight", (c.hidden_dim,))
        self._site("model.output_attn_res")
        for layer in range(c.num_layers):
            self._layer(f"model.layers.{layer}", layer)

    def _site(self, name: str) -> None:
        self._alone(f"{name}_norm.weight", (self._config.hidden_dim,))
        self._alone(f"{name}_proj.weight", (1, self._config.hidden_dim))

    def _layer(self, name: str, layer: int) -> None:
        c = self._config
        for norm in ("input_layernorm", "post_attention_layernorm"):
            self._alone(f"{name}.{norm}.weight", (c.hidden_dim,))
        self._site(f"{name}.self_attention_res")
        self._site(f"{name}.mlp_res")
        (self._mla if c.is_mla(layer) else self._kda)(f"{name}.self_attn")
        if c.is_dense(layer):
            self._mlp(f"{name}.mlp", c.dense_dim)
        else:
            self._moe(f"{name}.block_sparse_moe")

    def _kda(self, name: str) -> None:
        c, dim = self._config.kda, self._config.hidden_dim
        width = c.num_heads * c.head_dim
        rows = [(f"{name}.{p}_proj.weight", (width, dim)) for p in "qkv"]
        rows.append((f"{name}.b_proj.weight", (c.num_heads, dim)))
        rows.append((f"{name}.f_a_proj.weight", (c.head_dim, dim)))
        rows.append((f"{name}.g_proj.weight", (width, dim)))
        self._rows(f"{name}.in", rows)
        taps = [(f"{name}.{p}_conv1d.weight", (width, 1, c.conv_size)) for p in "qkv"]
        self._rows(f"{name}.conv", taps, keep=True)
        self._alone(f"{name}.f_b_proj.weight", (width, c.head_dim))
        self._alone(f"{name}.o_proj.weight", (dim, width))
        self._alone(f"{name}.A_log", (c.a_log_size,), keep=True)
        self._alone(f"{name}.dt_bias", (width,), keep=True)
        self._alone(f"{name}.o_norm.weight", (c.head_dim,), keep=True)

    def _mla(self, name: str) -> None:
        c, dim = self._config.mla, self._config.hidden_dim
        assert c.q_lora_rank is not None
        rows = [
            (f"{name}.q_a_proj.weight", (c.q_lora_rank, dim)),
            (f"{name}.kv_a_proj_with_mqa.weight", (c.kv_lora_rank + c.rope_dim, dim)),
            (f"{name}.g_proj.weight", (c.num_heads * c.v_dim, dim)),
        ]
        self._rows(f"{name}.in", rows)
        self._alone(f"{name}.q_a_layernorm.weight", (c.q_lora_rank,))
        self._alone(f"{name}.kv_a_layernorm.weight", (c.kv_lora_rank,))
        q_width = c.num_heads * (c.nope_dim + c.rope_dim)
        self._alone(f"{name}.q_b_proj.weight", (q_width, c.q_lora_rank))
        kv_width = c.num_heads * (c.nope_dim + c.v_dim)
        self._alone(f"{name}.kv_b_proj.weight", (kv_width, c.kv_lora_rank))
        self._alone(f"{name}.o_proj.weight", (dim, c.num_heads * c.v_dim))

    def _mlp(self, name: str, width: int) -> None:
        dim = self._config.hidden_dim
        rows = [(f"{name}.{p}_proj.weight", (width, dim)) for p in ("gate", "up")]
        self._rows(f"{name}.gate_up", rows)
        self._alone(f"{name}.down_proj.weight", (dim, width))

    def _moe(self, name: str) -> None:
        c, dim = self._config.moe, self._config.hidden_dim
        assert c is not None and c.latent_dim is not None
        latent, width = c.latent_dim, c.expert_dim
        self._alone(f"{name}.gate.weight", (c.num_experts, dim))
        self._alone(f"{name}.routed_expert_down_proj.weight", (latent, dim))
        self._alone(f"{name}.routed_expert_norm.weight", (latent,))
        self._alone(f"{name}.routed_expert_up_proj.weight", (dim, latent))
        self._mlp(f"{name}.shared_experts", c.num_shared * width)
        for fused, shape in (("w13", (2 * width, latent)), ("w2", (latent, width))):
            self.fused[f"{name}.{fused}"] = (c.num_experts, *shape)
            self.stacks.add(f"{name}.{fused}")
        for e in range(c.num_experts):
            for matrix, fused, start, shape in (
                ("w1", "w13", 0, (width, latent)),
                ("w3", "w13", width, (width, latent)),
                ("w2", "w2", 0, (latent, width)),
            ):
                self.parts[f"{name}.experts.{e}.{matrix}.weight"] = Part(
                    f"{name}.{fused}", start, start + shape[0], shape, e
                )


class Parameters:
    """Masters and computing leaves of a layout on one device."""

    def __init__(
        self, layout: Layout, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.layout, self.dtype = layout, dtype
        self.masters = {n: torch.zeros(s, device=device) for n, s in layout.fused.items()}
        self.leaves = {n: self._leaf(n) for n in self.masters}

    def _leaf(self, name: str) -> Tensor:
        kind = torch.float32 if name in self.layout.kept_f32 else self.dtype
        return torch.zeros_like(self.masters[name], dtype=kind).requires_grad_()

    def __getitem__(self, name: str) -> Tensor:
        return self.leaves[name]

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Every checkpoint tensor as a view of its master."""
        for name, part in self.layout.parts.items():
            yield name, part.view(self.masters[part.fused])

    def stored(self, name: str) -> Tensor:
        """A fused tensor as the leaf shall see it, before rounding to the leaf's type."""
        return self.masters[name]

    @torch.no_grad()
    def publish(self) -> None:
        """Masters to leaves, rounded to the computing type."""
        names = list(self.masters)
        ready = [self.stored(n) for n in names]
        torch._foreach_copy_([self.leaves[n].detach() for n in names], ready)


class Weights(Parameters):
    """The target's parameters and router biases; experts compute through MXFP4."""

    def __init__(
        self, config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(ModelLayout(config), device, dtype)
        self.config = config
        moe = config.moe
        assert moe is not None
        self.bias = {
            f"model.layers.{n}.block_sparse_moe": torch.zeros(moe.num_experts, device=device)
            for n in range(config.num_layers)
            if not config.is_dense(n)
        }

    def stored(self, name: str) -> Tensor:
        whole = self.masters[name]
        return fake_mxfp4(whole) if name in self.layout.stacks else whole

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Fill masters and biases from checkpoint tensors by canonical name (experts plain)."""
        for name, view in self.parts():
            view.copy_(tensors[name])
        for name, bias in self.bias.items():
            bias.copy_(tensors[f"{name}.gate.e_score_correction_bias"])
        self.publish()
