"""tile.mx4_plane as PTX: two values of a register of words at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k3compiler.targets.triton_ir.emitter import Emitter

# u: the values of both words of $1, where bf16 has its sign, the last two exponent bits and the first of the mantissa
_TAKE = (
    "and.b32 u, $1, 0x81C081C0;",
    "shl.b32 u, $1, 3; and.b32 u, u, 0x81C081C0;",
    "shl.b32 u, $1, 6; and.b32 u, u, 0x81C081C0;",
    "shl.b32 u, $1, 1; and.b32 u, u, 0x80008000; shr.b32 v, $1, 5; and.b32 v, v, 0x01000100; or.b32 u, u, v; "
    "shr.b32 v, $1, 4; and.b32 v, v, 0x00C000C0; or.b32 u, u, v;",
)


def emit_mx4_plane(e: Emitter, op: Any) -> str:
    """Emits the values' bits, times the bf16 whose exponent is the scale's byte."""
    words, scale = op.operation.operands
    plane, out = op.attributes["plane"].value, op.operation.results[0].type
    spread = f"prmt.b32 t, $2, 0, 0x4{plane}4{plane}; shl.b32 t, t, 7;"
    code = f"{{ .reg .b32 t, u, v; {spread} {_TAKE[plane]} mul.rn.bf16x2 $0, u, t; }}"
    options = 'constraints = "=r,r,r,r", packed_element = 2 : i32, pure = true'
    operands = f"{e.name(words)}, {e.name(scale)} : {words.type}, {scale.type}"
    return e.text.op(f'tt.elementwise_inline_asm "{code}" {{{options}}} {operands} -> {out}')
