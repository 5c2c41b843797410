"""Launches of a linear map of some columns of a norm."""

from __future__ import annotations

from typing import Any

from k3compiler.ir.location import origin_of
from k3compiler.passes.lower_to_tile.basics import (
    norm,
    power_of_two,
    result,
)
from k3compiler.passes.lower_to_tile.builder import PlanBuilder
from k3compiler.passes.lower_to_tile.products import Product, more_than, products
from k3compiler.passes.lower_to_tile.refs import Ref


def norm_linear(plan: PlanBuilder, op: Any) -> None:
    """Norm and product; where a schedule of ``norm_gemv`` says so, one launch for up to ``tokens`` tokens."""
    x, g, w, part = plan.ref(op.x), plan.ref(op.norm_weight), plan.ref(op.weight), op.part.value
    y = result(plan, op.y, "linear", x.rows)
    residual: dict[str, Ref] = {} if op.residual is None else {"r": plan.ref(op.residual)}
    shared = {
        "N": w.rows,
        "K": w.width,
        "epilogue": "add" if residual else "none",
        "dtype": x.dtype,
    }
    columns = int(g.shape[0])
    dims = {
        **shared,
        "cols": columns,
        "in_cols": x.width,
        "in_offset": x.offset,
        "block": power_of_two(columns, at_most=1 << 20),
        "eps": op.eps.value,
    }
    few = plan.schedule("norm_gemv", dims, plan.phase)[0].get("tokens")
    above = None if few is None else more_than(few, x)
    normed = plan.workspace("normed", x.dtype, x.rows, w.width)
    norm(plan, op, x, g, normed, part, times=above)
    given = {**shared, "in_cols": w.width, "in_offset": 0, "out_dtype": y.dtype}
    arguments = {"x": normed, "w": w, "y": y, **residual}
    products(plan, [Product(origin_of(op), given, arguments)], above=above)
    if above is not None:  # last, where it follows on the same branch: all of them write y
        arguments = {"x": x, "g": g, "w": w, "y": y, "part": part, **residual}
        plan.launch(origin_of(op), "norm_gemv", dims, arguments, times=f"1-{above}")
