"""The declared search space: by family and phase, the values that each part of a schedule may take.

An axis that a kernel does not have (a block size that its family lost, stages where the target has none) is left
out, so the table may name the axes of all forms of a family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from itertools import product
from typing import Any

from k3compiler.targets.schedule import LAUNCH_KEYS

Axes = Mapping[str, tuple[int, ...]]


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, Mapping[str, list[int]]]]:
    return json.loads((files("k3compiler.targets.tuning") / "space.json").read_text())


def axes_of(
    family: str, phase: str, params: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    """The axes that a kernel has, each with its values in order and the present one among them."""
    by_phase = _table().get(family, {})
    declared = by_phase.get(phase, by_phase.get("*", {}))
    present = {**params, **options}
    return {
        name: tuple(sorted({*values, present[name]}))
        for name, values in declared.items()
        if isinstance(present.get(name), int)
    }


def points(axes: Axes) -> list[dict[str, int]]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def split(point: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """What a point sets of the program's parameters, and of what the target's compiler takes."""
    blocks = {k: v for k, v in point.items() if k not in LAUNCH_KEYS}
    return blocks, {k: v for k, v in point.items() if k in LAUNCH_KEYS}
