"""The mx dialect: block-scaled formats (level 2)."""

from k3compiler.dialects.mx.ops import GROUP, Mx, Quantize, Round

__all__ = ["GROUP", "Mx", "Quantize", "Round"]
