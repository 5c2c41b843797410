"""Spellings of tensor names: the wrapper's prefix and legacy names (spec section 10)."""

from __future__ import annotations

import re
from collections.abc import Iterable

TEXT_PREFIX = "language_model."
VISION_PREFIXES = ("vision_tower.", "mm_projector.")

_LEGACY = (
    (re.compile(r"(self_attention_res|mlp_res|output_attn_res)\.(proj|norm)_weight$"), r"\1_\2.weight"),
    (re.compile(r"block_sparse_moe\.e_score_correction_bias$"), "block_sparse_moe.gate.e_score_correction_bias"),
)  # fmt: skip


def canonical_name(stored: str) -> str:
    """A stored name as the spec's table spells it, without the wrapper's prefix."""
    name = stored.removeprefix(TEXT_PREFIX)
    for pattern, spelling in _LEGACY:
        name = pattern.sub(spelling, name)
    return name


def canonical_names(stored: Iterable[str]) -> dict[str, str]:
    """Canonical name -> stored name, of every tensor."""
    return {canonical_name(name): name for name in stored}
