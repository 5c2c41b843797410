"""The draft's checkpoint in the names of spec section 9.2, and its config.json (9.1)."""

from __future__ import annotations

import json

import numpy as np
from safetensors.numpy import save
from torch import Tensor

from examples.train.draft_model import EMBED
from examples.train.weights import Parameters
from k3compiler.config import ModelConfig
from k3compiler.draft_config import DraftConfig, draft_tensors
from k3compiler.dtypes import numpy_dtype


def draft_bytes(config: DraftConfig, parameters: Parameters, embed: Tensor) -> bytes:
    """The safetensors file: every tensor bf16; ``embed_tokens`` is the target's."""
    plain = {name: view.cpu().numpy() for name, view in parameters.parts()}
    plain[EMBED] = embed.float().cpu().numpy()
    kind = numpy_dtype("bf16")
    shapes = draft_tensors(config)
    assert {n: t.shape for n, t in plain.items()} == shapes
    return save({n: np.ascontiguousarray(plain[n].astype(kind)) for n in shapes})


def draft_config_text(config: DraftConfig, target: ModelConfig) -> str:
    """config.json of ``k3_dspark``."""
    c = config
    assert c.rope.factor == 1
    data = {
        "architectures": ["K3DSparkModel"],
        "model_type": "k3_dspark",
        "dtype": "bfloat16",
        "vocab_size": c.vocab_size,
        "draft_vocab_size": c.vocab_size,
        "hidden_size": c.hidden_dim,
        "intermediate_size": c.ffn_dim,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "hidden_act": "silu",
        "rms_norm_eps": c.rms_eps,
        "q_lora_rank": c.q_lora_rank,
        "kv_lora_rank": c.kv_lora_rank,
        "qk_nope_head_dim": c.nope_dim,
        "qk_rope_head_dim": c.rope_dim,
        "v_head_dim": c.v_dim,
        "mla_use_nope": False,
        "mla_use_output_gate": False,
        "rope_theta": c.rope.theta,
        "rope_interleave": True,
        "rope_scaling": None,
        "max_position_embeddings": target.max_context,
        "target_layer_ids": list(c.target_layers),
        "num_target_layers": len(c.target_layers),
        "target_hidden_size": c.target_dim,
        "block_size": c.block,
        "mask_token_id": c.mask_id,
        "markov_rank": c.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "bos_token_id": target.bos_id,
        "eos_token_id": target.eos_id,
        "pad_token_id": target.pad_id,
    }
    return json.dumps(data, indent=2) + "\n"
