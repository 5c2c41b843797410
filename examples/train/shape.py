"""The shape of k3-nano, and of the model that the smoke test trains."""

from __future__ import annotations

from dataclasses import replace

from k3compiler.config import KdaConfig, MlaConfig, ModelConfig, MoeConfig

NUM_RANKS = 4096
NUM_SPECIALS = 256
END_OF_TEXT = NUM_RANKS + 1  # [EOS], between documents


def nano_config() -> ModelConfig:
    """14 layers: three AttnRes blocks of four and a remainder; the last two layers are MLA."""
    return ModelConfig(
        name="kimi_k3",
        vocab_size=NUM_RANKS + NUM_SPECIALS,
        hidden_dim=256,
        num_layers=14,
        mla_layers=(3, 7, 12, 13),
        num_dense=1,
        dense_dim=384,
        activation="situ",
        situ_beta=4.0,
        situ_linear_beta=25.0,
        rms_eps=1e-5,
        attn_res_block=4,
        max_context=8192,
        kda=KdaConfig(4, 64, 4, -5.0, True, 64),
        mla=MlaConfig(4, 96, 128, 64, 32, 64, True),
        moe=MoeConfig(32, 4, 2, 64, 96, True, True, 1.0, "mxfp4"),
        bos_id=NUM_RANKS,
        eos_id=NUM_RANKS + 2,
        pad_id=NUM_RANKS + 255,
    )


def smoke_config() -> ModelConfig:
    """k3-nano with every part in small: what a CPU trains in a minute."""
    base = nano_config()
    return replace(
        base,
        hidden_dim=64,
        num_layers=5,
        mla_layers=(3, 4),
        dense_dim=128,
        kda=KdaConfig(2, 32, 4, -5.0, True, 16),
        mla=MlaConfig(2, 32, 32, 32, 16, 32, True),
        moe=MoeConfig(32, 4, 2, 32, 32, True, True, 1.0, "mxfp4"),
    )
