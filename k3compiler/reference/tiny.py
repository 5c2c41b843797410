"""Small models for tests: every branch of the architecture, seconds to run."""

from __future__ import annotations

from dataclasses import replace

from k3compiler.config import KdaConfig, MlaConfig, ModelConfig, MoeConfig


def spec_tiny() -> ModelConfig:
    """The model of spec section 12 (one AttnRes block of three divides the nine layers)."""
    return ModelConfig(
        name="kimi_k3",
        vocab_size=211,
        hidden_dim=64,
        num_layers=9,
        mla_layers=(3, 7, 8),
        num_dense=1,
        dense_dim=160,
        activation="situ",
        situ_beta=4.0,
        situ_linear_beta=25.0,
        rms_eps=1e-5,
        attn_res_block=3,
        max_context=4096,
        kda=KdaConfig(4, 16, 4, -5.0, True, 16),
        mla=MlaConfig(4, 24, 32, 16, 8, 16, True),
        moe=MoeConfig(10, 3, 2, 32, 32, True, True, 1.0, "mxfp4"),
        bos_id=1,
        eos_id=2,
        pad_id=0,
    )


def odd_tiny() -> ModelConfig:
    """Vocabulary, head counts and widths that are no multiples of 16; ragged AttnRes blocks.

    Latent and expert widths stay multiples of 32 (the MX group).
    """
    return replace(
        spec_tiny(),
        vocab_size=173,
        hidden_dim=60,
        num_layers=7,
        mla_layers=(2, 6),
        dense_dim=100,
        attn_res_block=4,
        kda=KdaConfig(3, 20, 4, -5.0, True, 20),
        mla=MlaConfig(5, 28, 36, 12, 6, 14, True),
        moe=MoeConfig(7, 2, 1, 32, 32, True, True, 1.0, "mxfp4"),
    )


def unbounded_tiny() -> ModelConfig:
    """No ``gate_lower_bound``: the softplus gate, as in the 0.40B development checkpoint."""
    base = spec_tiny()
    return replace(
        base,
        num_layers=5,
        mla_layers=(3, 4),
        attn_res_block=2,
        kda=replace(base.kda, gate_lower_bound=None),
    )


def linear_tiny() -> ModelConfig:
    """Kimi-Linear-48B in small: softplus, low-rank gate, plain residuals, SiLU, no latent."""
    return replace(
        spec_tiny(),
        name="kimi_linear",
        num_layers=7,
        mla_layers=(3, 6),
        activation="silu",
        situ_beta=1.0,
        situ_linear_beta=None,
        attn_res_block=None,
        kda=KdaConfig(4, 16, 4, None, False, 4, 4),
        mla=MlaConfig(4, None, 32, 16, 8, 16, False),
        moe=MoeConfig(10, 3, 1, 32, None, False, True, 2.446, "plain"),
    )


TINY_CONFIGS = {
    "spec": spec_tiny,
    "odd": odd_tiny,
    "unbounded": unbounded_tiny,
    "linear": linear_tiny,
}


def tiny_config(name: str = "spec") -> ModelConfig:
    """One of :data:`TINY_CONFIGS`: ``spec``, ``odd``, ``unbounded`` or ``linear``."""
    return TINY_CONFIGS[name]()
