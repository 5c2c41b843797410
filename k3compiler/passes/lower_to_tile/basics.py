"""Launches of the plain ops: embedding, linear maps, norms, activations, the way out."""

from __future__ import annotations

from typing import Any

from k3compiler.ir.dialect import element, optional, shape
from k3compiler.ir.location import origin_of
from k3compiler.package.expr import Expr
from k3compiler.passes.lower_to_tile.builder import PlanBuilder
from k3compiler.passes.lower_to_tile.refs import Ref, step_input

NEXT_TOKEN = "next_token"  # an output of every plan
MAX_ROW_BLOCK = 8192  # columns of one elementwise block
MAX_SAMPLE_CHUNK = 2048  # tokens among which one program draws
BEST = (("score", "f32"), ("token", "i32"))


def power_of_two(number: int, *, at_most: int = MAX_ROW_BLOCK) -> int:
    """The smallest power of two from ``number`` on, or ``at_most``."""
    return min(1 << max(number - 1, 0).bit_length(), at_most)


def dtype_of(value: Any) -> str:
    """A value's memory dtype (names of docs/tile.md)."""
    return {"f8E4M3FN": "e4m3"}.get(element(value), element(value))


def columns_of(value: Any) -> int:
    """Static columns of a 2-D value."""
    width = shape(value)[-1]
    assert width is not None, f"{value.type} has no static columns"
    return width


def result(plan: PlanBuilder, value: Any, hint: str, rows: Expr, *inner: Expr) -> Ref:
    """A fresh buffer for a result with ``rows`` rows (inner extents default to its columns)."""
    return plan.bind(
        value, plan.workspace(hint, dtype_of(value), rows, *(inner or (columns_of(value),)))
    )


def weight(plan: PlanBuilder, op: Any) -> None:
    """A parameter is where the loader puts it."""
    extents = tuple(n for n in shape(op.value) if n is not None)
    plan.bind(op.value, Ref(f"w:{op.param.value}", dtype_of(op.value), extents))


def columns(plan: PlanBuilder, op: Any) -> None:
    """Columns of a buffer, no launch."""
    plan.bind(op.y, plan.ref(op.x).slice(op.offset.value, columns_of(op.y)))


def step_metadata(plan: PlanBuilder, op: Any) -> None:
    """The step inputs are where the kernels read them; a decode step is fed with what the last one chose."""
    if plan.phase == "decode":
        dims = {"page_tokens": op.page_tokens.value}
        chosen = Ref(NEXT_TOKEN, "i32", ("T",))
        given: dict[str, Ref | str] = {"record": step_input("decode_record"), NEXT_TOKEN: chosen}
        plan.launch(origin_of(op), "decode_metadata", dims, given)
    else:
        plan.launch(origin_of(op), "prefill_metadata", {}, {})
    plan.bind(op.new_tokens, plan.ref(op.tokens))


def embed(plan: PlanBuilder, op: Any) -> None:
    table = plan.ref(op.table)
    y = result(plan, op.y, "embedding", "T")
    dims = {
        "rows": table.rows,
        "cols": y.width,
        "block": power_of_two(y.width),
        "dtype": y.dtype,
    }
    first = str(optional(op, "first_row") or 0)
    plan.launch(
        origin_of(op),
        "embed",
        dims,
        {"tokens": step_input("tokens"), "table": table, "y": y, "vocab_first": first},
    )


def rms_norm(plan: PlanBuilder, op: Any) -> None:
    x = plan.ref(op.x)
    y = result(plan, op.y, "normed", x.rows)
    part = optional(op, "part")
    norm(plan, op, x, plan.ref(op.weight), y, part)


def norm(
    plan: PlanBuilder,
    op: Any,
    x: Ref,
    weight: Ref,
    y: Ref,
    part: str | None,
    times: Expr | None = None,
) -> None:
    """y of x, or a part of its columns."""
    dims = {
        "cols": weight.shape[0],
        "block": power_of_two(int(weight.shape[0]), at_most=1 << 20),
        "eps": op.eps.value,
        "dtype": x.dtype,
        "in_cols": x.width,
        "in_offset": x.offset,
    }
    arguments: dict[str, Ref | str] = {"x": x, "w": weight, "y": y}
    if part is not None:
        dims["part_cols"] = y.width
        arguments["part"] = str(part)
    plan.launch(origin_of(op), "rms_norm", dims, arguments, times=times)


def add(plan: PlanBuilder, op: Any) -> None:
    a, b = plan.ref(op.a), plan.ref(op.b)
    y = result(plan, op.y, "sum", a.rows)
    dims = {"cols": y.width, "block": power_of_two(y.width), "dtype": y.dtype}
    plan.launch(origin_of(op), "add", dims, {"a": a, "b": b, "y": y})


def activation(plan: PlanBuilder, op: Any) -> None:
    """SiTU or SwiGLU of a fused gate|up projection."""
    gate, up = plan.ref(op.gate), plan.ref(op.up)
    cols = gate.columns
    assert gate.name == up.name and up.offset == gate.offset + cols and gate.offset == 0, (
        "the activation kernel reads gate and up from one projection"
    )
    y = result(plan, op.y, "activated", gate.rows)
    is_situ = op.operation.name == "k3.situ"
    dims = {
        "cols": cols,
        "block": power_of_two(cols, at_most=2048),
        "activation": "situ" if is_situ else "silu",
        "beta": op.beta.value if is_situ else None,
        "linear_beta": optional(op, "linear_beta") if is_situ else None,
        "dtype": y.dtype,
    }
    plan.launch(origin_of(op), "act_mul", dims, {"gu": gate, "out": y})


def gather_rows(plan: PlanBuilder, op: Any) -> None:
    """No launch in a decode step, where every row wants logits."""
    x = plan.ref(op.x)
    if plan.phase == "decode":
        plan.bind(op.y, x)
        return
    y = result(plan, op.y, "rows", "R")
    dims = {"cols": x.width, "block": power_of_two(x.width), "dtype": x.dtype}
    plan.launch(origin_of(op), "gather_rows", dims, {"x": x, "y": y})


def argmax(plan: PlanBuilder, op: Any) -> None:
    logits = plan.ref(op.logits)
    token = plan.bind(op.token, plan.workspace("next_token", "i32", logits.rows))
    dims = {"vocab": logits.width}
    plan.launch(origin_of(op), "argmax", dims, {"logits": logits, "next_token": token})


def sample(plan: PlanBuilder, op: Any) -> None:
    """Three launches: the border of what may be drawn, the best of every chunk of the vocabulary, the best of all."""
    logits, origin = plan.ref(op.logits), origin_of(op)
    rows, vocab = logits.rows, logits.width
    chunk = power_of_two(vocab, at_most=MAX_SAMPLE_CHUNK)
    chunks = -(-vocab // chunk)
    border = plan.workspace("border", "i32", rows)
    score, token = (plan.workspace(f"best_{n}", d, rows, chunks) for n, d in BEST)
    plan.launch(origin, "sample_border", {"vocab": vocab}, {"logits": logits, "border": border})
    best: dict[str, Ref | str] = {"score": score, "token": token}
    dims = {"vocab": vocab, "chunk": chunk}
    plan.launch(origin, "sample_draw", dims, {"logits": logits, "border": border, **best})
    chosen = plan.bind(op.token, plan.workspace("next_token", "i32", rows))
    dims = {"chunks": chunks, "block_chunks": power_of_two(chunks)}
    plan.launch(origin, "sample_pick", dims, {**best, "next_token": chosen})


def collective(plan: PlanBuilder, op: Any) -> None:
    """All-reduce in place; all-gather and reduce-scatter into a fresh buffer."""
    kind, x = op.operation.name.partition(".")[2], plan.ref(op.x)
    assert x.whole, "collectives take whole buffers"
    if kind == "all_reduce":
        plan.bind(op.y, x)
        plan.collective(origin_of(op), kind, op.group.value, x)
        return
    y = result(plan, op.y, kind, x.rows)
    plan.collective(origin_of(op), kind, op.group.value, x, y)
