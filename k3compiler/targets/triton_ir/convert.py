"""tile.cast as Triton's conversions (rounding rules in docs/tile.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k3compiler.ir.bindings import ir
from k3compiler.targets.triton_ir.text import tensor

if TYPE_CHECKING:
    from k3compiler.targets.triton_ir.emitter import Emitter

E4M3_MAX = "4.480000e+02"
FLOATS = ("f32", "bf16", "f16", "f8E4M3FN")
BITS = {"f32": 32, "bf16": 16, "f16": 16, "f8E4M3FN": 8, "i32": 32, "i16": 16, "i8": 8, "i1": 1}


def emit_cast(e: Emitter, op: Any) -> str:
    """Emits a tile.cast; returns the converted value's name."""
    source, out = op.operation.operands[0].type, op.operation.results[0].type
    shape = list(out.shape) if isinstance(out, ir.RankedTensorType) else []
    names = [str(t.element_type if shape else t) for t in (source, out)]
    return convert(e, e.name(op.operation.operands[0]), shape, names[0], names[1])


def convert(e: Emitter, value: str, shape: list[int], source: str, out: str) -> str:
    """``value`` of element type ``source`` as ``out``."""
    if source == out:
        return value
    if source in FLOATS and out in FLOATS:
        return _float_to_float(e, value, shape, source, out)
    if source in FLOATS:
        value = convert(e, value, shape, source, "f32")
        return _plain(e, "arith.fptosi", value, shape, "f32", out)
    if out in FLOATS:
        name = "arith.uitofp" if source in ("i1", "i8") else "arith.sitofp"
        made = _plain(e, name, value, shape, source, "f32")
        return convert(e, made, shape, "f32", out)
    if BITS[source] < BITS[out]:
        return _plain(e, "arith.extui", value, shape, source, out)
    return _plain(e, "arith.trunci", value, shape, source, out)


def _float_to_float(e: Emitter, value: str, shape: list[int], source: str, out: str) -> str:
    if "f8E4M3FN" in (source, out):
        return _through_fp8(e, value, shape, source, out)
    if BITS[source] < BITS[out]:
        return _plain(e, "arith.extf", value, shape, source, out)
    if BITS[source] > BITS[out]:
        return _plain(e, "arith.truncf", value, shape, source, out)
    wide = _plain(e, "arith.extf", value, shape, source, "f32")
    return _plain(e, "arith.truncf", wide, shape, "f32", out)


def _through_fp8(e: Emitter, value: str, shape: list[int], source: str, out: str) -> str:
    if source == "f8E4M3FN":
        return _plain(e, "tt.fp_to_fp", value, shape, source, out, arrow="->")
    value = convert(e, value, shape, source, "f32")
    kind = tensor(shape, "f32")
    low, high = (e.text.constant(sign + E4M3_MAX, kind) for sign in ("-", ""))
    value = e.text.op(f"tt.clampf {value}, {low}, {high}, propagateNan = all : {kind}")
    return e.text.op(f"tt.fp_to_fp {value}, rounding = rtne : {kind} -> {tensor(shape, out)}")


def _plain(
    e: Emitter, name: str, value: str, shape: list[int], source: str, out: str, arrow: str = "to"
) -> str:
    return e.text.op(f"{name} {value} : {tensor(shape, source)} {arrow} {tensor(shape, out)}")
