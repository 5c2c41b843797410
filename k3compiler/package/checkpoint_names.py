"""Spellings of tensor names: the wrapper's prefix and legacy names (spec section 10)."""

from __future__ import annotations

import re
from collections.abc import Iterable

TEXT_PREFIX = "language_model."
VISION_PREFIXES = ("vision_tower.", "mm_projector.")

_RES_SITE = re.compile(r"(self_attention_res|mlp_res|output_attn_res)\.(proj|norm)_weight$")
_ROUTER_BIAS = re.compile(r"block_sparse_moe\.e_score_correction_bias$")


def canonical_name(stored: str) -> str:
    """A stored name as the spec's table spells it, without the wrapper's prefix."""
    name = stored.removeprefix(TEXT_PREFIX)
    name = _RES_SITE.sub(r"\1_\2.weight", name)
    return _ROUTER_BIAS.sub("block_sparse_moe.gate.e_score_correction_bias", name)


def canonical_names(stored: Iterable[str]) -> dict[str, str]:
    """Canonical name -> stored name, of every tensor."""
    return {canonical_name(name): name for name in stored}
