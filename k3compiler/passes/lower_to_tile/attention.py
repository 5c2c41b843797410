"""Launches of AttnRes and MLA."""

from __future__ import annotations

from typing import Any

from k3compiler.ir.location import origin_of
from k3compiler.passes.lower_to_tile.basics import columns_of, dtype_of, power_of_two, result
from k3compiler.passes.lower_to_tile.builder import PlanBuilder
from k3compiler.passes.lower_to_tile.refs import Ref


def mix_norm(plan: PlanBuilder, op: Any) -> None:
    """Running sum, mix over the snapshots, norm."""
    total, addends = plan.ref(op.sum), list(op.addend)
    snapshots = [plan.ref(v) for v in op.snapshots]
    y = result(plan, op.normed, "normed", total.rows)
    writes_sum = bool(addends)
    dims = {
        "cols": y.width, "block": power_of_two(y.width, at_most=1 << 20), "num_snapshots": len(snapshots),
        "delta": "add" if addends else "none", "write_sum": writes_sum, "eps": op.eps.value,
        "dtype": y.dtype,
    }
    assert op.eps.value == op.out_eps.value, "the kernel has one eps"
    arguments: dict[str, Ref | str] = {f"b{i}": b for i, b in enumerate(snapshots)}
    arguments |= {"p": total, "norm_w": plan.ref(op.out_norm), "y": y}
    if snapshots:
        arguments |= {"res_norm": plan.ref(op.norm), "res_proj": plan.ref(op.query)}
    if writes_sum:
        arguments |= {
            "delta": plan.ref(addends[0]),
            "p_out": result(plan, op.new_sum, "sum", total.rows),
        }
    plan.launch(origin_of(op), "attn_res_mix_norm", dims, arguments)


def latent_write(plan: PlanBuilder, op: Any) -> None:
    x, cache = plan.ref(op.kv_a), plan.bind(op.new_cache, plan.ref(op.cache))
    latent = columns_of(op.norm_weight)
    dims = {
        "kv_lora": latent, "rope": _inner(cache, 2) - latent, "page_tokens": _inner(cache, 1),
        "in_cols": x.width, "in_offset": x.offset, "eps": op.eps.value, "dtype": x.dtype,
    }
    arguments = {"x": x, "w": plan.ref(op.norm_weight), "mla_cache": cache}
    plan.launch(origin_of(op), "mla_latent_write", dims, arguments)


def _inner(ref: Ref, axis: int) -> int:
    extent = ref.shape[axis]
    assert isinstance(extent, int)
    return extent


def expand(plan: PlanBuilder, op: Any) -> None:
    """The paged latents in one piece, then keys and values of every head."""
    cache, kv_b = plan.ref(op.cache), plan.ref(op.kv_b)
    latent, row = kv_b.width, _inner(cache, 2)
    gathered = plan.workspace("latent", cache.dtype, "KV", row)
    dims = {
        "kv_lora": latent, "rope": row - latent, "page_tokens": _inner(cache, 1), "dtype": cache.dtype,
    }
    plan.launch(origin_of(op), "mla_gather", dims, {"mla_cache": cache, "latent": gathered})
    kv = result(plan, op.kv, "kv", "KV")
    matrix = {
        "N": kv.width, "K": latent, "in_cols": row, "in_offset": 0, "epilogue": "none",
        "dtype": kv.dtype, "out_dtype": kv.dtype,
    }
    plan.launch(origin_of(op), "gemm", matrix, {"x": gathered, "w": kv_b, "y": kv})
    plan.bind(op.rope, gathered.slice(latent, row - latent))


def prefill(plan: PlanBuilder, op: Any) -> None:
    q, kv, latent = plan.ref(op.q), plan.ref(op.kv), plan.ref(op.rope)
    gates = [plan.ref(v) for v in op.gate]
    o = result(plan, op.o, "attended", q.rows)
    dims = {
        "heads": op.num_heads.value, "nope": op.nope_dim.value, "rope": op.rope_dim.value,
        "v": op.v_dim.value, "kv_lora": latent.offset, "dtype": o.dtype, "gate": bool(gates),
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
        "heads": heads, "N": kv_b.width, "K": op.nope_dim.value, "x_cols": q.width // heads, "x_offset": 0,
        "w_rows": int(kv_b.rows) // heads, "w_cols": kv_b.width, "w_offset": 0, "transposed": True,
        "epilogue": "none", "dtype": q.dtype,
    }
    plan.launch(origin_of(op), "head_gemm", dims, {"x": q, "w": kv_b, "y": latent})
    plan.bind(op.q_latent, latent)


def decode(plan: PlanBuilder, op: Any) -> None:
    """Partial softmax sums of every span of the context; the spans follow from the page table's width."""
    absorbed = op.q_latent.owner.opview
    q_latent, q, cache = plan.ref(op.q_latent), plan.ref(absorbed.q), plan.ref(op.cache)
    heads, rope = op.num_heads.value, op.rope_dim.value
    page, latent = _inner(cache, 1), _inner(cache, 2) - rope
    dims = {
        "heads": heads, "nope": absorbed.nope_dim.value, "rope": rope, "kv_lora": latent,
        "page_tokens": page, "dtype": q.dtype,
    }
    span = plan.schedule("mla_decode", dims, plan.phase)["split_tokens"]
    splits = f"cdiv(P*{page}, {span})"
    rows = q_latent.rows
    partial = plan.bind(op.partial, plan.workspace("partial", "f32", rows, splits, heads, latent))
    top, total = (plan.workspace(n, "f32", rows, splits, heads) for n in ("top", "total"))
    plan.split_sums[partial.name] = (top, total, span)
    arguments = {
        "q_lat": q_latent, "q": q, "mla_cache": cache, "acc": partial, "m": top, "l": total,
    }
    plan.launch(origin_of(op), "mla_decode", dims, arguments)


def merge(plan: PlanBuilder, op: Any) -> None:
    partial = plan.ref(op.partial)
    top, total, span = plan.split_sums[partial.name]
    heads, latent = _inner(partial, 2), _inner(partial, 3)
    merged = plan.workspace("o_latent", dtype_of(op.o_latent), partial.rows, heads, latent)
    dims = {"heads": heads, "kv_lora": latent, "split_tokens": span, "dtype": merged.dtype}
    arguments = {"acc": partial, "m": top, "l": total, "o_lat": plan.bind(op.o_latent, merged)}
    plan.launch(origin_of(op), "mla_merge", dims, arguments)


def value_up(plan: PlanBuilder, op: Any) -> None:
    x, kv_b, heads = plan.ref(op.o_latent), plan.ref(op.kv_b), op.num_heads.value
    gates = [plan.ref(v) for v in op.gate]
    v, rows = op.v_dim.value, int(kv_b.rows) // heads
    y = plan.bind(op.o, plan.workspace("attended", dtype_of(op.o), x.rows, heads, v))
    dims = {
        "heads": heads, "N": v, "K": kv_b.width, "x_cols": kv_b.width, "x_offset": 0, "w_rows": rows,
        "w_cols": kv_b.width, "w_offset": rows - v, "transposed": False,
        "epilogue": "gate" if gates else "none", "dtype": y.dtype,
    }
    arguments = {"x": x, "w": kv_b, "y": y}
    if gates:
        dims |= {"g_cols": gates[0].width, "g_offset": gates[0].offset}
        arguments["g"] = gates[0]
    plan.launch(origin_of(op), "head_gemm", dims, arguments)

