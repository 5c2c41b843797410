"""The shape of a DSpark draft (spec 9.1, 9.2), as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, log, pi
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.config import ModelConfig
from k3compiler.errors import K3Error

# What the one draft architecture has; a config that says otherwise is refused.
_FIXED: dict[str, Any] = {
    "model_type": "k3_dspark",
    "hidden_act": "silu",
    "mla_use_nope": False,
    "mla_use_output_gate": False,
    "rope_interleave": True,
    "markov_head_type": "vanilla",
    "confidence_head_with_markov": True,
}
_COUNTS = {
    "hidden_dim": "hidden_size",
    "ffn_dim": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "nope_dim": "qk_nope_head_dim",
    "rope_dim": "qk_rope_head_dim",
    "v_dim": "v_head_dim",
    "target_dim": "target_hidden_size",
    "block": "block_size",
    "mask_id": "mask_token_id",
    "markov_rank": "markov_rank",
    "vocab_size": "vocab_size",
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """RoPE over interleaved pairs with YaRN's frequencies; factor 1 is plain RoPE."""

    theta: float
    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """A DSpark draft's shape. ``target_layers`` are 0-based: P after that layer is tapped."""

    hidden_dim: int
    ffn_dim: int
    num_layers: int
    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    rope: RopeConfig
    rms_eps: float
    target_layers: tuple[int, ...]
    target_dim: int
    block: int
    mask_id: int
    markov_rank: int
    vocab_size: int

    @property
    def softmax_scale(self) -> float:
        """``(nope + rope)^-0.5`` times YaRN's mscale squared (spec 9.1)."""
        return (self.nope_dim + self.rope_dim) ** -0.5 * yarn_mscale(self.rope) ** 2

    @property
    def row_dim(self) -> int:
        """Numbers that a draft layer keeps of a verified position: latent and rope key."""
        return self.kv_lora_rank + self.rope_dim

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, where: str = "config.json") -> DraftConfig:
        """From a ``k3_dspark`` config.json object (spec 9.1).

        Raises:
            K3Error: K3-G001 a key is missing or of the wrong kind, K3-G002 a value not supported.
        """
        for key, value in _FIXED.items():
            if data.get(key, value) != value:
                raise K3Error(
                    "K3-G002", where=f"{where}: {key}", expected=f"{value}", found=f"{data[key]}"
                )
        keys = _Keys(data, where)
        return cls(
            **{name: keys.count(key) for name, key in _COUNTS.items()},
            rope=_rope(keys, data),
            rms_eps=keys.number("rms_norm_eps"),
            target_layers=keys.layers("target_layer_ids"),
        )

    def check_target(self, target: ModelConfig, *, where: str) -> None:
        """Whether this drafts for ``target``.

        Raises:
            K3Error: K3-G007.
        """
        wants = {
            "vocab_size": (target.vocab_size, self.vocab_size),
            "target_hidden_size": (target.hidden_dim, self.target_dim),
            "kv_lora_rank + qk_rope_head_dim": (
                target.mla.kv_lora_rank + target.mla.rope_dim,
                self.row_dim,
            ),
        }
        for key, (model, own) in wants.items():
            if model != own:
                raise _misfit(f"{where}: {key}", f"{model} (the model's)", f"{own}")
        if max(self.target_layers) >= target.num_layers:
            found = str(list(self.target_layers))
            raise _misfit(f"{where}: target_layer_ids", f"at most {target.num_layers - 1}", found)


def load_draft_config(path: str | Path) -> DraftConfig:
    """The config of a draft's checkpoint directory (or of its config.json).

    Raises:
        K3Error: K3-G005 unreadable; see :meth:`DraftConfig.from_json`.
    """
    given = Path(path)
    file = given / "config.json" if given.is_dir() else given
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        expected = "a DSpark draft's directory with config.json"
        raise K3Error("K3-G005", where=str(file), expected=expected, found=str(error)) from None
    if not isinstance(data, dict):
        raise K3Error("K3-G005", where=str(file), expected="an object", found=type(data).__name__)
    return DraftConfig.from_json(data, where=str(file))


class _Keys:
    """Typed reading of one JSON object."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data, self._where = data, where

    def number(self, key: str, default: float | None = None) -> float:
        value = self._data.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(key, "a number", value)
        return value

    def count(self, key: str) -> int:
        value = self._data.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(key, "an integer >= 1", value)
        return value

    def layers(self, key: str) -> tuple[int, ...]:
        value: Any = self._data.get(key)
        is_list = isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
        if not is_list or not value or sorted(set(value)) != value:
            raise self._wrong(key, "ascending layer numbers from 0", value)
        return tuple(value)

    def _wrong(self, key: str, expected: str, value: Any) -> K3Error:
        found = "nothing" if value is None else repr(value)
        return K3Error("K3-G001", where=f"{self._where}: {key}", expected=expected, found=found)


def _rope(keys: _Keys, data: Mapping[str, Any]) -> RopeConfig:
    scaling = _Keys(data.get("rope_scaling") or {}, "rope_scaling")
    return RopeConfig(
        theta=keys.number("rope_theta"),
        factor=scaling.number("factor", 1.0),
        original_context=int(scaling.number("original_max_position_embeddings", 1)),
        beta_fast=scaling.number("beta_fast", 32),
        beta_slow=scaling.number("beta_slow", 1),
        mscale=scaling.number("mscale", 1),
        mscale_all_dim=scaling.number("mscale_all_dim", 0),
    )


def _misfit(where: str, expected: str, found: str) -> K3Error:
    hint = "is this the draft of this model?"
    return K3Error("K3-G007", where=where, expected=expected, found=found, hint=hint)


def draft_tensors(config: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the draft's checkpoint with its shape (spec 9.2); all are bf16."""
    c, dim = config, config.hidden_dim
    shapes: dict[str, tuple[int, ...]] = {
        "context_proj.weight": (dim, len(c.target_layers) * c.target_dim),
        "context_norm.weight": (dim,),
        "final_norm.weight": (dim,),
        "markov_head.markov_w1": (c.vocab_size, c.markov_rank),
        "markov_head.markov_w2": (c.vocab_size, c.markov_rank),
        "confidence_head.proj.weight": (1, dim + c.markov_rank),
        "confidence_head.proj.bias": (1,),
        "embed_tokens.weight": (c.vocab_size, dim),
    }
    for n in range(c.num_layers):
        shapes |= {f"layers.{n}.{k}": v for k, v in _layer_tensors(c).items()}
    return shapes


def _layer_tensors(c: DraftConfig) -> dict[str, tuple[int, ...]]:
    dim = c.hidden_dim
    return {
        "input_layernorm.weight": (dim,),
        "post_attention_layernorm.weight": (dim,),
        "self_attn.q_a_proj.weight": (c.q_lora_rank, dim),
        "self_attn.q_a_layernorm.weight": (c.q_lora_rank,),
        "self_attn.q_b_proj.weight": (c.num_heads * (c.nope_dim + c.rope_dim), c.q_lora_rank),
        "self_attn.kv_a_proj_with_mqa.weight": (c.row_dim, dim),
        "self_attn.kv_a_layernorm.weight": (c.kv_lora_rank,),
        "self_attn.kv_b_proj.weight": (c.num_heads * (c.nope_dim + c.v_dim), c.kv_lora_rank),
        "self_attn.o_proj.weight": (dim, c.num_heads * c.v_dim),
        "mlp.gate_proj.weight": (c.ffn_dim, dim),
        "mlp.up_proj.weight": (c.ffn_dim, dim),
        "mlp.down_proj.weight": (dim, c.ffn_dim),
    }


def yarn_mscale(rope: RopeConfig) -> float:
    """``0.1 mscale ln(factor) + 1`` for the softmax scale; 1 without scaling."""
    if rope.factor <= 1 or not rope.mscale_all_dim:
        return 1.0
    return 0.1 * rope.mscale_all_dim * log(rope.factor) + 1


def yarn_frequencies(rope: RopeConfig, dim: int) -> NDArray[np.float64]:
    """Radians per position of each of the ``dim / 2`` pairs, ``f64``.

    Fast pairs keep RoPE's frequency, slow ones are divided by the factor, with a straight ramp
    between the pairs that turn ``beta_fast`` and ``beta_slow`` times over the original context.
    """
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    if rope.factor <= 1:
        return plain

    def pair_of(turns: float) -> float:
        return dim * log(rope.original_context / (turns * 2 * pi)) / (2 * log(rope.theta))

    low = max(floor(pair_of(rope.beta_fast)), 0)
    high = min(ceil(pair_of(rope.beta_slow)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)
