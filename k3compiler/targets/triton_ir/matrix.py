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
    return e.text.op(
        f"tt.dot {names[0]}, {names[1]}, {e.name(acc)}{mode} : {types[0]} * {types[1]} -> {acc.type}"
    )


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
    element = kind.removesuffix(">").rsplit("x", 1)[1]
    out = tensor(shape[::-1], element)
    return e.text.op(f"tt.trans {name} {{order = array<i32: 1, 0>}} : {kind} -> {out}"), out


def _scale(e: Emitter, scale: Any | None) -> tuple[str, str]:
    """The scale's text behind its operand and behind its operand's type."""
    return ("", "") if scale is None else (f" scale {e.name(scale)}", f", {scale.type}")
