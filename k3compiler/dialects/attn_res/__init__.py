"""The attn_res dialect: Attention Residuals (level 2)."""

from k3compiler.dialects.attn_res.ops import AttnRes, MixNorm

__all__ = ["AttnRes", "MixNorm"]
