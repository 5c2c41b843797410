"""Launches of matrix products: the kernel for a step's number of tokens, products of one input together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3compiler.ir.location import Origin
from k3compiler.passes.lower_to_tile.beside import Launch, launch_beside
from k3compiler.passes.lower_to_tile.builder import PlanBuilder
from k3compiler.passes.lower_to_tile.refs import Ref

FEW_TOKENS = (8, 16)  # the most of a ``gemm_few``, each a kernel where the schedule has one


@dataclass(frozen=True, slots=True)
class Product:
    """Dimensions and arguments of a ``gemm``."""

    origin: Origin
    dims: Mapping[str, Any]
    arguments: Mapping[str, Ref]


@dataclass(frozen=True, slots=True)
class _Form:
    """A kernel for few tokens: family, dimensions, the most tokens."""

    family: str
    dims: Mapping[str, Any]
    most: int


def products(plan: PlanBuilder, made: Sequence[Product], *, above: str | None = None) -> None:
    """``gemm``; before it, for few tokens, the kernels that the schedule has: a step launches one of them.

    Products of the same rows are one launch where they all have the same forms. ``above`` is 0 where a launch of
    the caller's takes their place.
    """
    few = [_for_few(plan, one.dims) for one in made]
    if len({tuple((form.family, form.most) for form in forms) for forms in few}) > 1:
        for one in made:
            products(plan, [one], above=above)
        return
    for forms in zip(*few, strict=True):
        is_more = more_than(forms[0].most, made[0].arguments["x"])
        within = f"1-{is_more}" if above is None else f"{above}*(1-{is_more})"
        pairs = zip(made, forms, strict=True)
        launches = [Launch(one.origin, f.family, f.dims, one.arguments) for one, f in pairs]
        launch_beside(plan, launches, times=within)
        above = is_more
    launches = [Launch(one.origin, "gemm", one.dims, one.arguments) for one in made]
    launch_beside(plan, launches, times=above)


def more_than(most: int, rows: Ref) -> str:
    """Times of a launch for more rows than ``most``: 1 there, else 0."""
    return f"min(1, max(0, {rows.rows}-{most}))"


def _for_few(plan: PlanBuilder, dims: Mapping[str, Any]) -> list[_Form]:
    """Kernels for few tokens, those for fewer first."""
    one = plan.schedule("gemv", dims, plan.phase)[0].get("tokens")
    made: list[_Form] = [] if one is None else [_Form("gemv", dims, one)]
    for most in FEW_TOKENS:
        given = {**dims, "tokens": most}
        if "parts" in plan.schedule("gemm_few", given, plan.phase)[0]:
            made.append(_Form("gemm_few", given, most))
    return made
