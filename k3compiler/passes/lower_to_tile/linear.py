"""Launches of linear maps, plain and gated."""

from __future__ import annotations

from functools import cmp_to_key
from typing import Any

from k3compiler.dialects import k3
from k3compiler.ir.dialect import optional
from k3compiler.ir.location import origin_of
from k3compiler.passes.lower_to_tile.basics import result, weight
from k3compiler.passes.lower_to_tile.builder import PlanBuilder
from k3compiler.passes.lower_to_tile.products import Product, products
from k3compiler.passes.match import is_before, maker, users


def linear(plan: PlanBuilder, op: Any) -> None:
    """A map; in a decode step those of the same input with it, which then are launched already."""
    if not plan.has(op.y):
        products(plan, [_product(plan, one) for one in [op, *_maps_beside(plan, op)]])


def _maps_beside(plan: PlanBuilder, op: Any) -> list[Any]:
    """Later maps of the same input that need nothing but it and parameters, which may stand anywhere."""
    if plan.phase != "decode" or not _is_free(op):
        return []
    others = [user for user in users(op.x) if _is_free(user) and is_before(op, user)]
    for other in others:
        weight(plan, maker(other.weight, k3.Weight))
    return sorted(others, key=cmp_to_key(lambda a, b: -1 if is_before(a, b) else 1))


def _is_free(op: Any) -> bool:
    return isinstance(op, k3.Linear | k3.GatedLinear) and len(op.operation.operands) == 2


def _product(plan: PlanBuilder, op: Any) -> Product:
    """The activation of a gated map is an epilogue: a program has two tiles of weights, gate and up."""
    x, w, is_gated = plan.ref(op.x), plan.ref(op.weight), isinstance(op, k3.GatedLinear)
    y = result(plan, op.y, "activated" if is_gated else "linear", x.rows)
    dims = {
        "N": y.width,
        "K": w.width,
        "in_cols": x.width,
        "in_offset": x.offset,
        "epilogue": op.activation.value if is_gated else op.epilogue.value,
        "dtype": x.dtype,
        "out_dtype": y.dtype,
    }
    arguments = {"x": x, "w": w, "y": y}
    if is_gated:
        dims |= {"beta": optional(op, "beta"), "linear_beta": optional(op, "linear_beta")}
    elif op.residual is not None:
        arguments["r"] = plan.ref(op.residual)
    return Product(origin_of(op), dims, arguments)
