"""Launches of the expert layer: route, sort, two grouped products, combine; and the MXFP8 conversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k3compiler.config import MX_GROUP
from k3compiler.ir.dialect import optional, shape
from k3compiler.ir.location import origin_of
from k3compiler.package.expr import Expr
from k3compiler.passes.lower_to_tile.basics import (
    columns_of,
    dtype_of,
    power_of_two,
    result,
)
from k3compiler.passes.lower_to_tile.builder import PlanBuilder
from k3compiler.passes.lower_to_tile.products import more_than
from k3compiler.passes.lower_to_tile.refs import Ref
from k3compiler.passes.match import users


def route_topk(plan: PlanBuilder, op: Any) -> None:
    _choose(plan, op, None)


def sort(plan: PlanBuilder, op: Any) -> None:
    _sort(plan, op, _lists(plan, op, plan.ref(op.ids)), None)


def route(plan: PlanBuilder, op: Any) -> None:
    """One launch of one token, two of a few, where the target wants it so; else four."""
    logits, few = (
        plan.ref(op.logits),
        plan.schedule("moe_sort", {}, plan.phase)[0].get("few_tokens"),
    )
    many = None if few is None else more_than(few, logits)
    _choose(plan, op, many)
    lists = _lists(plan, op, plan.ref(op.ids))
    _sort(plan, op, lists, many)
    if many is None:
        return
    several = more_than(1, logits)
    _route_few(plan, op, lists, times=f"{several}-{many}")
    dims = _choice_dims(plan, op) | {
        "local_experts": op.num_experts.value,
        "block_rows": op.block_rows.value,
    }
    arguments = _choice(plan, op) | lists
    plan.launch(origin_of(op), "moe_route", dims, arguments, times=f"1-{several}")


def _choice(plan: PlanBuilder, op: Any) -> dict[str, Ref | str]:
    """What a router of local experts reads and writes, its results bound already."""
    return {
        "logits": plan.ref(op.logits),
        "bias": plan.ref(op.bias),
        "ids": plan.ref(op.ids),
        "weights": plan.ref(op.weights),
        "expert_first": _first(op),
    }


def _route_few(plan: PlanBuilder, op: Any, lists: dict[str, Ref], times: Expr) -> None:
    """Two launches: each token's choice, and all lists."""
    origin, experts = origin_of(op), op.num_experts.value
    places = plan.workspace("places", "i8", plan.ref(op.logits).rows, experts)
    dims = _choice_dims(plan, op) | {"local_experts": experts}
    arguments = _choice(plan, op) | {"places": places}
    plan.launch(origin, "moe_choose", dims, arguments, times=times)
    dims = {
        "experts": experts,
        "top_k": op.top_k.value,
        "block_experts": power_of_two(experts),
        "block_rows": op.block_rows.value,
    }
    plan.launch(origin, "moe_group", dims, {"places": places, **lists}, times=times)


def _choice_dims(plan: PlanBuilder, op: Any) -> dict[str, Any]:
    logits, top_k = plan.ref(op.logits), op.top_k.value
    assert logits.whole, "the router's logits are a buffer of their own"
    return {
        "experts": logits.width,
        "top_k": top_k,
        "block_experts": power_of_two(logits.width),
        "block_choices": power_of_two(top_k),
        "renormalize": op.renormalize.value,
        "scale": op.scale.value,
    }


def _choose(plan: PlanBuilder, op: Any, times: Expr | None) -> None:
    logits = plan.ref(op.logits)
    arguments = {
        "logits": logits,
        "bias": plan.ref(op.bias),
        "ids": result(plan, op.ids, "expert_ids", logits.rows),
        "weights": result(plan, op.weights, "expert_weights", logits.rows),
    }
    plan.launch(origin_of(op), "moe_topk", _choice_dims(plan, op), arguments, times=times)


def _first(op: Any) -> str:
    return str(optional(op, "first_expert") or 0)


def _lists(plan: PlanBuilder, op: Any, ids: Ref) -> dict[str, Ref]:
    """The sorted pairs, the blocks' experts and the number of blocks, by kernel argument."""
    experts, block_rows = op.num_experts.value, op.block_rows.value
    count = f"{ids.rows}*{ids.width}"
    blocks = (
        f"min({count}, cdiv({count}, {block_rows})+{experts})"  # a block holds at least one pair
    )
    return {
        "pairs": plan.bind(op.pairs, plan.workspace("pairs", "i32", f"{blocks}*{block_rows}")),
        "block_expert": plan.bind(op.block_expert, plan.workspace("block_expert", "i32", blocks)),
        "num_blocks": plan.bind(op.num_blocks, plan.workspace("num_blocks", "i32", 1)),
    }


def _sort(plan: PlanBuilder, op: Any, lists: dict[str, Ref], times: Expr | None) -> None:
    """Three launches: count, offsets, scatter."""
    ids, experts, block_rows = plan.ref(op.ids), op.num_experts.value, op.block_rows.value
    counts = plan.workspace("counts", "i32", experts)
    starts = plan.workspace("starts", "i32", experts)
    origin, first = origin_of(op), _first(op)
    scanned = {
        "experts": experts,
        "top_k": ids.width,
        "block_choices": power_of_two(ids.width),
    }
    count = {"ids": ids, "counts": counts, "expert_first": first}
    plan.launch(origin, "moe_count", scanned, count, times=times)
    plan.launch(
        origin,
        "moe_offsets",
        {"experts": experts, "block_rows": block_rows, "block_experts": power_of_two(experts)},
        {
            "counts": counts,
            "starts": starts,
            "block_expert": lists["block_expert"],
            "num_blocks": lists["num_blocks"],
        },
        times=times,
    )
    plan.launch(
        origin,
        "moe_scatter",
        {**scanned, "block_rows": block_rows},
        {"ids": ids, "starts": starts, "pairs": lists["pairs"], "expert_first": first},
        times=times,
    )


def gate_up(plan: PlanBuilder, op: Any) -> None:
    x, pairs, w1 = plan.ref(op.x), plan.ref(op.pairs), plan.ref(op.w1)
    experts, inner = shape(op.w1)[:2]
    width = columns_of(op.x)
    is_situ = op.activation.value == "situ"
    h = result(plan, op.h, "hidden", pairs.rows)
    dims = {
        "experts": experts,
        "inner": inner,
        "width": width,
        "top_k": op.top_k.value,
        "in_cols": x.width,
        "in_offset": x.offset,
        "format": op.format.value,
        "activation": op.activation.value,
        "beta": optional(op, "beta") if is_situ else None,
        "linear_beta": optional(op, "linear_beta") if is_situ else None,
        "block_rows": op.block_rows.value,
        "dtype": h.dtype,
    }
    rounds = {"rounds": True} if optional(op, "rounds") else {}
    arguments = {
        "x": x,
        "w1": w1,
        "w3": plan.ref(op.w3),
        "pairs": pairs,
        "block_expert": plan.ref(op.block_expert),
        "h": h,
    } | _scales(plan, op, x_scale="x_scale", s1="s1", s3="s3")
    if h.dtype == "e4m3":
        arguments["h_scale"] = result(plan, op.h_scale, "hidden_scale", pairs.rows)
    several = more_than(1, x) if _wants(plan, "moe_gate_up_one", dims) else None
    plan.launch(origin_of(op), "moe_gate_up", dims | rounds, arguments, times=several)
    if several is not None:
        _gate_up_one(plan, op, dims, arguments, times=f"1-{several}")


def _gate_up_one(
    plan: PlanBuilder,
    op: Any,
    dims: Mapping[str, Any],
    arguments: Mapping[str, Ref],
    times: Expr,
) -> None:
    """A program has fewer columns than share a scale, so rounding is a launch of its own."""
    one, h = {k: v for k, v in arguments.items() if k != "pairs"}, arguments["h"]
    if not optional(op, "rounds"):
        plan.launch(origin_of(op), "moe_gate_up_one", dims, one, times=times)
        return
    exact = plan.workspace("exact", h.dtype, *h.shape)
    plan.launch(origin_of(op), "moe_gate_up_one", dims, one | {"h": exact}, times=times)
    _round(plan, op, exact, h, times)


def _wants(plan: PlanBuilder, family: str, dims: Mapping[str, Any]) -> bool:
    """Whether a schedule has blocks for a family that other families can stand in for."""
    return "block_n" in plan.schedule(family, dims, plan.phase)[0]


def _scales(plan: PlanBuilder, op: Any, **names: str) -> dict[str, Ref]:
    """The scale operands that this format has, by kernel argument."""
    given = {name: getattr(op, operand) for name, operand in names.items()}
    return {name: plan.ref(value) for name, value in given.items() if value is not None}


def down(plan: PlanBuilder, op: Any) -> None:
    """Not of one token where the sum over experts makes it too."""
    weights = plan.ref(op.weights)
    y = result(plan, op.y, "expert_out", f"{weights.rows}*{weights.width}")
    dims, arguments = _down(plan, op)
    times = more_than(1, weights) if _sums_one(plan, op) else None
    plan.launch(origin_of(op), "moe_down", dims, arguments | {"y": y}, times=times)


def _down(plan: PlanBuilder, op: Any) -> tuple[dict[str, Any], dict[str, Ref]]:
    """Dimensions and arguments, the result left out."""
    weights = plan.ref(op.weights)
    experts, width = shape(op.w2)[:2]
    dims = {
        "experts": experts,
        "inner": columns_of(op.x),
        "width": width,
        "top_k": weights.width,
        "format": op.format.value,
        "block_rows": op.block_rows.value,
        "block_choices": power_of_two(weights.width),
        "dtype": dtype_of(op.y),
        "out_dtype": dtype_of(op.y),
    }
    arguments = {
        "x": plan.ref(op.x),
        "w2": plan.ref(op.w2),
        "pairs": plan.ref(op.pairs),
        "block_expert": plan.ref(op.block_expert),
        "weights": weights,
    }
    return dims, arguments | _scales(plan, op, x_scale="x_scale", s2="s2")


def _sums_one(plan: PlanBuilder, op: Any) -> bool:
    """Whether a ``moe.down`` and the sum of its result, without a norm, are one launch for one token."""
    (user,) = users(op.y)
    return optional(user, "eps") is None and _wants(plan, "moe_down_one", _down(plan, op)[0])


def combine(plan: PlanBuilder, op: Any) -> None:
    """Of one token one launch with ``moe.down``, where a schedule says so."""
    y, ids = plan.ref(op.y), plan.ref(op.ids)
    eps, first = optional(op, "eps"), str(optional(op, "first_expert") or 0)
    r = result(plan, op.r, "routed", ids.rows)
    block = power_of_two(r.width, at_most=2048 if eps is None else 1 << 20)
    dims = {
        "experts": op.num_experts.value,
        "top_k": ids.width,
        "width": r.width,
        "block": block,
        "eps": eps,
        "in_dtype": y.dtype,
        "dtype": r.dtype,
        "out_dtype": r.dtype,
    }
    arguments: dict[str, Ref | str] = {"y": y, "ids": ids, "r": r, "expert_first": first}
    if op.norm_weight is not None:
        arguments["norm_w"] = plan.ref(op.norm_weight)
    down_op = op.y.owner.opview
    several = more_than(1, ids) if _sums_one(plan, down_op) else None
    plan.launch(origin_of(op), "moe_combine", dims, arguments, times=several)
    if several is not None:
        one, given = _down(plan, down_op)
        one |= {"out_dtype": r.dtype}
        plan.launch(origin_of(op), "moe_down_one", one, given | {"r": r}, times=f"1-{several}")


def quantize(plan: PlanBuilder, op: Any) -> None:
    """Rows to MXFP8; the rows may be tokens or sorted pairs."""
    x = plan.ref(op.x)
    arguments = {
        "x": x,
        "values": result(plan, op.values, "quantized", x.rows),
        "scale": result(plan, op.scale, "scale", x.rows),
    }
    plan.launch(origin_of(op), "mx_quantize", _mx_dims(x, columns_of(op.x)), arguments)


def rounded(plan: PlanBuilder, op: Any) -> None:
    """Rows to the numbers that MXFP8 has."""
    x = plan.ref(op.x)
    _round(plan, op, x, result(plan, op.y, "rounded", x.rows), None)


def _round(plan: PlanBuilder, op: Any, x: Ref, y: Ref, times: Expr | None) -> None:
    dims = _mx_dims(x, y.width)
    plan.launch(origin_of(op), "mx_round", dims, {"x": x, "y": y}, times=times)


def _mx_dims(x: Ref, cols: int) -> dict[str, Any]:
    assert cols % MX_GROUP == 0
    return {
        "cols": cols,
        "block_cols": power_of_two(cols, at_most=512),
        "dtype": x.dtype,
        "in_cols": x.width,
        "in_offset": x.offset,
    }
