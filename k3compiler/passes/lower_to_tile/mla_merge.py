"""Launches that follow MLA decode: the parts of the context put together, and the value product."""

from __future__ import annotations

from typing import Any

from k3compiler.ir.location import origin_of
from k3compiler.package.expr import Expr
from k3compiler.passes.lower_to_tile.attention import inner
from k3compiler.passes.lower_to_tile.basics import dtype_of
from k3compiler.passes.lower_to_tile.builder import PlanBuilder
from k3compiler.passes.lower_to_tile.refs import Ref


def merge(plan: PlanBuilder, op: Any) -> None:
    plan.bind(op.o_latent, _merge(plan, op, dtype_of(op.o_latent)))


def value_up(plan: PlanBuilder, op: Any) -> None:
    _value_up(plan, op, plan.ref(op.o_latent), _output(plan, op))


def merge_up(plan: PlanBuilder, op: Any) -> None:
    """Two launches; where a schedule of ``mla_few`` says so, one for up to ``tokens`` tokens.

    The one reads a head's weights and parts for every token by itself: worth a launch while programs are few.
    """
    rows, kv_b, y = plan.ref(op.acc).rows, plan.ref(op.kv_b), _output(plan, op)
    heads, w_rows = op.num_heads.value, int(kv_b.rows) // op.num_heads.value
    gate_dims, gate = _gate(plan, op)
    dims = {
        "heads": heads,
        "N": op.v_dim.value,
        "kv_lora": kv_b.width,
        "w_rows": w_rows,
        "w_offset": w_rows - op.v_dim.value,
        "split_tokens": op.split_tokens.value,
        "dtype": y.dtype,
        **gate_dims,
    }
    few = plan.schedule("mla_few", dims, plan.phase)[0].get("tokens")
    two = None if few is None else f"min(1, max(0, {rows}-{few}))"
    _value_up(plan, op, _merge(plan, op, y.dtype, two), y, two)
    if two is not None:  # last, where it follows on the same branch: all of them write y
        arguments = {**_parts(plan, op), "w": kv_b, "y": y, **gate}
        plan.launch(origin_of(op), "mla_merge_up", dims, arguments, times=f"1-{two}")


def _output(plan: PlanBuilder, op: Any) -> Ref:
    rows = plan.ref(op.operation.operands[0]).rows
    shape = (rows, op.num_heads.value, op.v_dim.value)
    return plan.bind(op.o, plan.workspace("attended", dtype_of(op.o), *shape))


def _parts(plan: PlanBuilder, op: Any) -> dict[str, Ref]:
    return {"acc": plan.ref(op.acc), "m": plan.ref(op.top), "l": plan.ref(op.total)}


def _merge(plan: PlanBuilder, op: Any, dtype: str, times: Expr | None = None) -> Ref:
    parts = _parts(plan, op)
    heads, latent = inner(parts["acc"], 2), inner(parts["acc"], 3)
    merged = plan.workspace("o_latent", dtype, parts["acc"].rows, heads, latent)
    dims = {
        "heads": heads,
        "kv_lora": latent,
        "split_tokens": op.split_tokens.value,
        "dtype": dtype,
    }
    plan.launch(origin_of(op), "mla_merge", dims, {**parts, "o_lat": merged}, times=times)
    return merged


def _value_up(plan: PlanBuilder, op: Any, x: Ref, y: Ref, times: Expr | None = None) -> None:
    kv_b, heads, v = plan.ref(op.kv_b), op.num_heads.value, op.v_dim.value
    rows = int(kv_b.rows) // heads
    gate_dims, gate = _gate(plan, op)
    dims = {
        "heads": heads,
        "N": v,
        "K": kv_b.width,
        "x_cols": kv_b.width,
        "x_offset": 0,
        "w_rows": rows,
        "w_cols": kv_b.width,
        "w_offset": rows - v,
        "transposed": False,
        "dtype": y.dtype,
        **gate_dims,
    }
    arguments = {"x": x, "w": kv_b, "y": y, **gate}
    plan.launch(origin_of(op), "head_gemm", dims, arguments, times=times)


def _gate(plan: PlanBuilder, op: Any) -> tuple[dict[str, Any], dict[str, Ref]]:
    """What an output gate adds to a product's parameters and arguments."""
    if op.gate is None:
        return {"epilogue": "none"}, {}
    g = plan.ref(op.gate)
    return {"epilogue": "gate", "g_cols": g.width, "g_offset": g.offset}, {"g": g}
