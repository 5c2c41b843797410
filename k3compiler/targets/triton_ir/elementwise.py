"""arith and math ops: the same names in Triton IR, except for what its code generators lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k3compiler.ir.bindings import ir

if TYPE_CHECKING:
    from k3compiler.targets.triton_ir.emitter import Emitter

CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
CMPF = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord",
        "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true")  # fmt: skip
TINY_TANH = 0.03  # below, the series is exact to f32 and 1 - e^-2x is not
ROUND_MAGIC = 1.5 * 2**23  # adding it leaves no bits below 1, rounded to even
ROUND_LIMIT = float(2**22)


def emit_same(e: Emitter, op: Any) -> str:
    """An op whose text is ``name operands : type``."""
    operands = ", ".join(e.name(v) for v in op.operation.operands)
    return e.text.op(f"{op.operation.name} {operands} : {op.operation.operands[0].type}")


def emit_compare(e: Emitter, op: Any) -> str:
    name = op.operation.name
    predicate = (CMPI if name == "arith.cmpi" else CMPF)[op.attributes["predicate"].value]
    a, b = op.operation.operands
    return e.text.op(f"{name} {predicate}, {e.name(a)}, {e.name(b)} : {a.type}")


def emit_select(e: Emitter, op: Any) -> str:
    condition, a, b = op.operation.operands
    kind = (
        f"{condition.type}, {a.type}" if isinstance(condition.type, ir.RankedTensorType) else a.type
    )
    return e.text.op(f"arith.select {e.name(condition)}, {e.name(a)}, {e.name(b)} : {kind}")


def emit_constant(e: Emitter, op: Any) -> str:
    return e.text.op(f"arith.constant {op.attributes['value']}")


def emit_tanh(e: Emitter, op: Any) -> str:
    """tanh x = sign(x) (1 - t) / (1 + t), t = e^(-2|x|); x - x^3/3 near 0."""
    operand = op.operation.operands[0]
    m = _Maths(e, str(operand.type))
    x = e.name(operand)
    t = m.unary("math.exp", m.binary("mulf", m.unary("math.absf", x), m.number(-2.0)))
    far = m.binary("divf", m.binary("subf", m.number(1.0), t), m.binary("addf", m.number(1.0), t))
    signed = m.select(m.less(x, m.number(0.0)), m.unary("arith.negf", far), far)
    square = m.binary("mulf", x, x)
    slope = m.binary("subf", m.number(1.0), m.binary("mulf", square, m.number(1.0 / 3.0)))
    near = m.binary("mulf", x, slope)
    return m.select(m.less(m.unary("math.absf", x), m.number(TINY_TANH)), near, signed)


def emit_roundeven(e: Emitter, op: Any) -> str:
    """Adding and taking away 1.5 * 2^23 rounds |x| < 2^22 to even; larger ones keep their value's integer."""
    operand = op.operation.operands[0]
    m = _Maths(e, str(operand.type))
    x = e.name(operand)
    rounded = m.binary("subf", m.binary("addf", x, m.number(ROUND_MAGIC)), m.number(ROUND_MAGIC))
    return m.select(m.less(m.unary("math.absf", x), m.number(ROUND_LIMIT)), rounded, x)


class _Maths:
    """Shorthand for expansions over one f32 type."""

    def __init__(self, e: Emitter, kind: str) -> None:
        self.text, self.kind = e.text, kind

    def number(self, value: float) -> str:
        return self.text.constant(f"{value:.9e}", self.kind)

    def unary(self, name: str, x: str) -> str:
        return self.text.op(f"{name} {x} : {self.kind}")

    def binary(self, name: str, a: str, b: str) -> str:
        return self.text.op(f"arith.{name} {a}, {b} : {self.kind}")

    def less(self, a: str, b: str) -> str:
        return self.text.op(f"arith.cmpf olt, {a}, {b} : {self.kind}")

    def select(self, condition: str, a: str, b: str) -> str:
        truth = self.kind.replace("f32", "i1")
        kind = f"{truth}, {self.kind}" if self.kind.startswith("tensor") else self.kind
        return self.text.op(f"arith.select {condition}, {a}, {b} : {kind}")
