"""The model's shape as plain data (dimension letters as in docs/layout.md)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

LORA_NORM_EPS = 1e-6  # q_a_layernorm and kv_a_layernorm; spec 4.2
L2_NORM_EPS = 1e-6  # added to the sum of squares; spec 3.3
MX_GROUP = 32


@dataclass(frozen=True, slots=True)
class KdaConfig:
    """KDA mixer. ``gate_lower_bound`` None selects the softplus gate (spec 3.3)."""

    num_heads: int
    head_dim: int
    conv_size: int
    gate_lower_bound: float | None
    full_rank_gate: bool  # g_proj, or g_a_proj and g_b_proj
    a_log_size: int  # stored elements of A_log; the first num_heads count
    a_log_rank: int = 1  # 4: stored as [1, 1, a_log_size, 1]

    @property
    def a_log_shape(self) -> tuple[int, ...]:
        """A_log as the checkpoint stores it."""
        return (self.a_log_size,) if self.a_log_rank == 1 else (1, 1, self.a_log_size, 1)


@dataclass(frozen=True, slots=True)
class MlaConfig:
    """Gated NoPE MLA. ``q_lora_rank`` None means one q_proj."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    output_gate: bool


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """LatentMoE, or an ordinary MoE where ``latent_dim`` is None."""

    num_experts: int
    top_k: int
    num_shared: int
    expert_dim: int
    latent_dim: int | None
    latent_norm: bool
    renormalize: bool
    scale: float
    expert_format: Literal["mxfp4", "plain"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A K3-family text model.

    Layer indices are 0-based: ``mla_layers`` are MLA, all others KDA; layers below ``num_dense`` have a
    dense FFN of width ``dense_dim``, all others the MoE.
    """

    name: str  # "kimi_k3" or "kimi_linear"
    vocab_size: int
    hidden_dim: int
    num_layers: int
    mla_layers: tuple[int, ...]
    num_dense: int
    dense_dim: int
    activation: Literal["situ", "silu"]
    situ_beta: float
    situ_linear_beta: float | None
    rms_eps: float
    attn_res_block: int | None  # None: plain residuals
    max_context: int
    kda: KdaConfig
    mla: MlaConfig
    moe: MoeConfig | None
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    tie_embeddings: bool = False

    def is_mla(self, layer: int) -> bool:
        return layer in self.mla_layers

    def is_dense(self, layer: int) -> bool:
        return layer < self.num_dense or self.moe is None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelConfig:
        """The inverse of :meth:`to_dict` (after JSON)."""
        nested = {"kda": KdaConfig, "mla": MlaConfig, "moe": MoeConfig}
        known = {f.name: data[f.name] for f in fields(cls)}
        for key, kind in nested.items():
            known[key] = None if known[key] is None else kind(**known[key])
        known["mla_layers"] = tuple(known["mla_layers"])
        return cls(**known)
