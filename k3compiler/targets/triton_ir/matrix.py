"""tile.dot and tile.dot_scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k3compiler.targets.triton_ir.convert import convert
from k3compiler.targets.triton_ir.text import tensor

if TYPE_CHECKING:
    from k3compiler.targets.triton_ir.emitter import Emitter


def emit_dot(e: Emitter, op: Any) -> str:
    """Emits a tile.dot; f32 operands keep ``ieee``, or run as tf32 where the chip has it."""
    a, b, acc = op.operation.operands
    precision = op.attributes["precision"].value
    element = str(a.type.element_type)
    names, types = [e.name(a), e.name(b)], [str(a.type), str(b.type)]
    if element == "f32" and precision == "bf16":
        names = [convert(e, e.name(v), list(v.type.shape), "f32", "bf16") for v in (a, b)]
        types = [tensor(list(v.type.shape), "bf16") for v in (a, b)]
    use_tf32 = element == "f32" and precision == "tf32" and e.form.has_tf32
    mode = ", inputPrecision = tf32" if use_tf32 else ""
    parts, total, kind = acc.type.shape[0] // a.type.shape[0], e.name(acc), str(acc.type)
    if parts > 1:
        names[0], types[0] = _parts_first(e, names[0], types[0], 1, parts)
        names[1], types[1] = _parts_first(e, names[1], types[1], 0, parts)
        total, kind = _reshaped(e, total, kind, [parts, a.type.shape[0], acc.type.shape[1]])
    made = e.text.op(
        f"tt.dot {names[0]}, {names[1]}, {total}{mode} : {types[0]} * {types[1]} -> {kind}"
    )
    return made if parts == 1 else _reshaped(e, made, kind, list(acc.type.shape))[0]


def _parts_first(e: Emitter, name: str, kind: str, axis: int, parts: int) -> tuple[str, str]:
    """An operand with ``axis`` cut into parts, as a batch: Triton gives the products of a batch a warp each."""
    shape = _extents(kind)
    cut = [*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :]]
    name, kind = _reshaped(e, name, kind, cut)
    if axis == 0:
        return name, kind
    out = tensor([cut[1], cut[0], cut[2]], _element(kind))
    order = "{order = array<i32: 1, 0, 2>}"
    return e.text.op(f"tt.trans {name} {order} : {kind} -> {out}"), out


def _reshaped(e: Emitter, name: str, kind: str, shape: list[int]) -> tuple[str, str]:
    out = tensor(shape, _element(kind))
    return e.text.op(f"tt.reshape {name} : {kind} -> {out}"), out


def _extents(kind: str) -> list[int]:
    return [int(n) for n in kind.removeprefix("tensor<").split("x")[:-1]]


def _element(kind: str) -> str:
    return kind.removesuffix(">").rsplit("x", 1)[1]


def emit_dot_scaled(e: Emitter, op: Any) -> str:
    """Emits a tile.dot_scaled; tt.dot_scaled wants the second operand as ``[K, N]``, packed along K."""
    a, b, acc = (op.operation.operands[i] for i in range(3))
    forms = [op.a_format.value, op.b_format.value]
    left, left_type = _operand(e, a, forms[0])
    right, right_type = _transposed(e, *_operand(e, b, forms[1]), list(b.type.shape))
    forms = ["bf16" if form == "f32" else form for form in forms]
    scales = [_scale(e, op.a_scale), _scale(e, op.b_scale)]
    return e.text.op(
        f"tt.dot_scaled {left}{scales[0][0]}, {right}{scales[1][0]}, {e.name(acc)} "
        f"lhs = {forms[0]} rhs = {forms[1]} {{fastMath = false}} : "
        f"{left_type}{scales[0][1]} * {right_type}{scales[1][1]} -> {acc.type}"
    )


def _operand(e: Emitter, value: Any, form: str) -> tuple[str, str]:
    """The operand and its type; f32 is rounded to bf16, which is what MX products take."""
    if form != "f32":
        return e.name(value), str(value.type)
    shape = list(value.type.shape)
    return convert(e, e.name(value), shape, "f32", "bf16"), tensor(shape, "bf16")


def _transposed(e: Emitter, name: str, kind: str, shape: list[int]) -> tuple[str, str]:
    out = tensor(shape[::-1], _element(kind))
    return e.text.op(f"tt.trans {name} {{order = array<i32: 1, 0>}} : {kind} -> {out}"), out


def _scale(e: Emitter, scale: Any | None) -> tuple[str, str]:
    """The scale's text behind its operand and behind its operand's type."""
    return ("", "") if scale is None else (f" scale {e.name(scale)}", f", {scale.type}")
