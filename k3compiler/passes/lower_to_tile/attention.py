"""Launches of AttnRes and MLA."""

from __future__ import annotations

from typing import Any

from k3compiler.ir.dialect import optional
from k3compiler.ir.location import origin_of
from k3compiler.passes.lower_to_tile.basics import columns_of, dtype_of, power_of_two, result
from k3compiler.passes.lower_to_tile.builder import PlanBuilder
from k3compiler.passes.lower_to_tile.refs import Ref

PARTS = 128  # of all sequences' contexts together: about one program a multiprocessor


def mix_norm(plan: PlanBuilder, op: Any) -> None:
    """Running sum, mix over the snapshots, norm."""
    total, addend = plan.ref(op.sum), op.addend
    snapshots = [plan.ref(v) for v in op.snapshots]
    y = result(plan, op.normed, "normed", total.rows)
    writes_sum = addend is not None
    eps = optional(op, "eps")
    dims = {
        "cols": y.width,
        "block": power_of_two(y.width, at_most=1 << 20),
        "num_snapshots": len(snapshots),
        "delta": "add" if writes_sum else "none",
        "write_sum": writes_sum,
        "eps": op.out_eps.value,
        "dtype": y.dtype,
    }
    assert eps in (None, op.out_eps.value), "the kernel has one eps"
    arguments: dict[str, Ref | str] = {f"b{i}": b for i, b in enumerate(snapshots)}
    arguments |= {"p": total, "norm_w": plan.ref(op.out_norm), "y": y}
    if snapshots:
        arguments |= {"res_norm": plan.ref(op.norm), "res_proj": plan.ref(op.query)}
    if writes_sum:
        arguments |= {
            "delta": plan.ref(addend),
            "p_out": result(plan, op.new_sum, "sum", total.rows),
        }
    plan.launch(origin_of(op), "attn_res_mix_norm", dims, arguments)


def latent_write(plan: PlanBuilder, op: Any) -> None:
    _latent_write(plan, op, {}, {})


def norm_write(plan: PlanBuilder, op: Any) -> None:
    """The latent write, with a second program a token for the query."""
    q_a = plan.ref(op.q_a)
    q = result(plan, op.q, "normed", q_a.rows)
    dims = {"q_lora": q.width, "q_cols": q_a.width, "q_offset": q_a.offset}
    _latent_write(plan, op, dims, {"q_a": q_a, "q_w": plan.ref(op.q_weight), "q": q})


def _latent_write(
    plan: PlanBuilder, op: Any, more_dims: dict[str, int], more: dict[str, Ref]
) -> None:
    x, cache = plan.ref(op.kv_a), plan.bind(op.new_cache, plan.ref(op.cache))
    latent = columns_of(op.norm_weight)
    dims = {
        "kv_lora": latent,
        "rope": _inner(cache, 2) - latent,
        "page_tokens": _inner(cache, 1),
        "in_cols": x.width,
        "in_offset": x.offset,
        "eps": op.eps.value,
        "dtype": x.dtype,
        **more_dims,
    }
    arguments = {"x": x, "w": plan.ref(op.norm_weight), "mla_cache": cache, **more}
    plan.launch(origin_of(op), "mla_latent_write", dims, arguments)


def _inner(ref: Ref, axis: int) -> int:
    extent = ref.shape[axis]
    assert isinstance(extent, int)
    return extent


def gather(plan: PlanBuilder, op: Any) -> None:
    """The paged latents of every sequence in one piece."""
    cache, row = plan.ref(op.cache), columns_of(op.latent)
    gathered = result(plan, op.latent, "latent", "KV")
    first = 1 << ((row - 1).bit_length() - 1)  # the kernel copies a row in two pieces
    dims = {
        "kv_lora": first,
        "rope": row - first,
        "page_tokens": _inner(cache, 1),
        "dtype": cache.dtype,
    }
    plan.launch(origin_of(op), "mla_gather", dims, {"mla_cache": cache, "latent": gathered})


def prefill(plan: PlanBuilder, op: Any) -> None:
    q, kv, latent = plan.ref(op.q), plan.ref(op.kv), plan.ref(op.latent)
    gates = [] if op.gate is None else [plan.ref(op.gate)]
    o = result(plan, op.o, "attended", q.rows)
    dims = {
        "heads": op.num_heads.value,
        "nope": op.nope_dim.value,
        "rope": op.rope_dim.value,
        "v": op.v_dim.value,
        "kv_lora": latent.columns - op.rope_dim.value,
        "dtype": o.dtype,
        "gate": bool(gates),
    }
    arguments = {"q": q, "kv": kv, "latent": latent, "o": o}
    if gates:
        dims |= {"g_cols": gates[0].width, "g_offset": gates[0].offset}
        arguments["g"] = gates[0]
    plan.launch(origin_of(op), "mla_prefill", dims, arguments)


def absorb_q(plan: PlanBuilder, op: Any) -> None:
    """``q_nope W_uk``; the rope channels stay where they are, the decode kernel reads them there."""
    q, kv_b, heads = plan.ref(op.q), plan.ref(op.kv_b), op.num_heads.value
    latent = plan.workspace("q_latent", q.dtype, q.rows, heads, kv_b.width)
    dims = {
        "heads": heads,
        "N": kv_b.width,
        "K": op.nope_dim.value,
        "x_cols": q.width // heads,
        "x_offset": 0,
        "w_rows": int(kv_b.rows) // heads,
        "w_cols": kv_b.width,
        "w_offset": 0,
        "transposed": True,
        "epilogue": "none",
        "dtype": q.dtype,
    }
    plan.launch(origin_of(op), "head_gemm", dims, {"x": q, "w": kv_b, "y": latent})
    plan.bind(op.q_latent, latent)


def decode(plan: PlanBuilder, op: Any) -> None:
    """Partial softmax sums of every part of the context; how many parts follows from batch and page table."""
    q_latent, q, cache = (plan.ref(v) for v in (op.q_latent, op.q, op.cache))
    heads, rope, span = op.num_heads.value, op.rope_dim.value, op.split_tokens.value
    page, latent = _inner(cache, 1), _inner(cache, 2) - rope
    dims = {
        "heads": heads,
        "nope": q.width // heads - rope,
        "rope": rope,
        "kv_lora": latent,
        "page_tokens": page,
        "split_tokens": span,
        "dtype": q.dtype,
    }
    rows = q_latent.rows
    splits = f"min(cdiv(P*{page}, {span}), max(1, {PARTS} // ({rows})))"
    top, total = (
        result(plan, v, n, rows, splits, heads) for v, n in ((op.top, "top"), (op.total, "total"))
    )
    acc = result(plan, op.acc, "partial", rows, splits, heads, latent)
    arguments = {"q_lat": q_latent, "q": q, "mla_cache": cache, "acc": acc, "m": top, "l": total}
    plan.launch(origin_of(op), "mla_decode", dims, arguments)


def merge(plan: PlanBuilder, op: Any) -> None:
    acc = plan.ref(op.acc)
    heads, latent = _inner(acc, 2), _inner(acc, 3)
    merged = result(plan, op.o_latent, "o_latent", acc.rows, heads, latent)
    dims = {
        "heads": heads,
        "kv_lora": latent,
        "split_tokens": op.split_tokens.value,
        "dtype": merged.dtype,
    }
    arguments = {"acc": acc, "m": plan.ref(op.top), "l": plan.ref(op.total), "o_lat": merged}
    plan.launch(origin_of(op), "mla_merge", dims, arguments)


def value_up(plan: PlanBuilder, op: Any) -> None:
    x, kv_b, heads = plan.ref(op.o_latent), plan.ref(op.kv_b), op.num_heads.value
    gates = [] if op.gate is None else [plan.ref(op.gate)]
    v, rows = op.v_dim.value, int(kv_b.rows) // heads
    y = plan.bind(op.o, plan.workspace("attended", dtype_of(op.o), x.rows, heads, v))
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
        "epilogue": "gate" if gates else "none",
        "dtype": y.dtype,
    }
    arguments = {"x": x, "w": kv_b, "y": y}
    if gates:
        dims |= {"g_cols": gates[0].width, "g_offset": gates[0].offset}
        arguments["g"] = gates[0]
    plan.launch(origin_of(op), "head_gemm", dims, arguments)
