"""Cases of kernels beside each other: those of the parts, at one number of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from k3compiler.check.case import Array, Case, Params, make_case

TOKENS = 7  # where no part has a most


def beside(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    parts: list[tuple[str, Params]] = params["parts"]
    most = min([part["tokens"] for _, part in parts if "tokens" in part], default=None)
    tokens = sizes.get("T", TOKENS if most is None else most)
    given = {**sizes, "T": tokens if most is None else min(tokens, most)}
    arguments: dict[str, Any] = {}
    expected: dict[str, Array] = {}
    where: dict[str, Array] = {}
    tolerances: dict[str, float] = {}
    keeps: set[str] = set()
    for index, (family, part) in enumerate(parts):
        case = make_case(family, part, rng, given)
        arguments |= {f"{name}_{index}": value for name, value in case.arguments.items()}
        expected |= {f"{name}_{index}": value for name, value in case.expected.items()}
        where |= {f"{name}_{index}": value for name, value in case.where.items()}
        tolerances |= {f"{name}_{index}": case.tolerance for name in case.expected}
        keeps |= {f"{name}_{index}" for name in case.keeps}
    least = min(tolerances.values())
    return Case(arguments, expected, least, where, frozenset(keeps), tolerances)
