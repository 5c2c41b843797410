"""Norms, residual adds and activations."""

from collections.abc import Iterator, Sequence

from k3compiler.dialects.k3.dialect import FLOATS, K3Op
from k3compiler.ir.dialect import (
    Fault,
    FloatAttr,
    IntegerAttr,
    Operand,
    Result,
    Tensor,
    optional,
    positive,
    ranked,
    same,
    shape,
    shaped,
    typed,
    want,
)


def per_head(what: str, value: object, num_heads: int) -> Fault:
    """A fault unless the columns split evenly over the heads."""
    columns = shape(value)[-1]
    if num_heads > 0 and columns is not None and columns % num_heads == 0:
        return None
    return f"{what}: expected columns in {num_heads} equal heads, found {columns}"


class RmsNorm(K3Op, name="rms_norm"):
    """``y = x rsqrt(mean(x²) + eps) w``, statistics in fp32.

    ``part`` (optional, an expression in ``rank``): which part of the columns y is; the statistics are of all.

    Shapes: x [T, D], weight [D] -> y [T, D], or with a part [T, D / parts].
    """

    OPTIONAL = ("part",)
    EQUATION = "notation"
    x: Operand[Tensor]
    weight: Operand[Tensor]
    eps: FloatAttr
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("x", self.x, 2)
        yield typed("x", self.x, *FLOATS)
        yield shaped("weight", self.weight, shape(self.x)[-1])
        yield typed("y", self.y, *FLOATS)
        yield positive("eps", self.eps.value)
        if optional(self, "part") is None:
            yield shaped("y", self.y, *shape(self.x))
        elif (shape(self.x)[-1] or 0) % (shape(self.y)[-1] or 1):
            yield f"part: expected equal parts of {shape(self.x)[-1]} columns, found {self.y.type}"


class GatedRmsNorm(K3Op, name="gated_rms_norm"):
    """RMSNorm per head, then the sigmoid gate: ``y = o rsqrt(mean_d(o²) + eps) w ⊙ σ(gate)``.

    Shapes: o [T, H*Dv], gate [T, H*Dv], weight [Dv] f32 -> y [T, H*Dv].
    """

    EQUATION = "3.5"
    o: Operand[Tensor]
    gate: Operand[Tensor]
    weight: Operand[Tensor]
    num_heads: IntegerAttr
    eps: FloatAttr
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield per_head("o", self.o, self.num_heads.value)
        yield shaped("gate", self.gate, *shape(self.o))
        yield want(
            "num_heads * weight",
            shape(self.o)[-1],
            self.num_heads.value * (shape(self.weight)[0] or 0),
        )
        yield shaped("y", self.y, *shape(self.o))
        yield positive("eps", self.eps.value)


class L2Norm(K3Op, name="l2_norm"):
    """``y = scale x rsqrt(Σ_d x² + eps)`` per head; eps is added to the sum, under the root.

    Shapes: x [T, H*Dk] -> y [T, H*Dk].
    """

    EQUATION = "3.3"
    x: Operand[Tensor]
    num_heads: IntegerAttr
    eps: FloatAttr
    scale: FloatAttr
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield per_head("x", self.x, self.num_heads.value)
        yield shaped("y", self.y, *shape(self.x))
        yield positive("eps", self.eps.value)
        yield positive("scale", self.scale.value)


class Add(K3Op, name="add"):
    """``y = a + b``.

    Shapes: a, b [T, D] -> y [T, D], all of one type.
    """

    EQUATION = "2.4"
    a: Operand[Tensor]
    b: Operand[Tensor]
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield typed("a", self.a, *FLOATS)
        yield same("b", self.a, self.b)
        yield same("y", self.a, self.y)


class AttnResMix(K3Op, name="attn_res_mix"):
    """Softmax over depth: ``mix = Σ_i softmax_i(Σ_d k_i n p) v_i`` with ``k_i = v_i rsqrt(mean(v_i²) + eps)``.

    Candidates are the snapshots, oldest first, then the running sum; the raw ones are mixed.

    Shapes: norm [D], query [D], candidates M times [T, D] -> y [T, D].
    """

    EQUATION = "2.3"
    norm: Operand[Tensor]
    query: Operand[Tensor]
    candidates: Sequence[Operand[Tensor]]
    eps: FloatAttr
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        width = shape(self.y)[-1]
        yield shaped("norm", self.norm, width)
        yield shaped("query", self.query, width)
        yield positive("candidates", len(list(self.candidates)))
        yield positive("eps", self.eps.value)
        for candidate in self.candidates:
            yield same("candidate", self.y, candidate)


class Silu(K3Op, name="silu"):
    """``y = x σ(x)``.

    Shapes: x [T, D] -> y [T, D].
    """

    EQUATION = "3.2"
    x: Operand[Tensor]
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield same("y", self.x, self.y)


class Sigmoid(K3Op, name="sigmoid"):
    """``y = σ(x)``, in fp32.

    Shapes: x [T, D] -> y [T, D] f32.
    """

    EQUATION = "3.3"
    x: Operand[Tensor]
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield shaped("y", self.y, *shape(self.x))
        yield typed("y", self.y, "f32")


class MulSigmoid(K3Op, name="mul_sigmoid"):
    """``y = x ⊙ σ(gate)``: MLA's output gate, on the raw attention output.

    Shapes: x, gate [T, D] -> y [T, D].
    """

    EQUATION = "4.1"
    x: Operand[Tensor]
    gate: Operand[Tensor]
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield shaped("gate", self.gate, *shape(self.x))
        yield shaped("y", self.y, *shape(self.x))


class Situ(K3Op, name="situ"):
    """``y = β tanh(g/β) σ(g) ⊙ β_lin tanh(u/β_lin)``; the up branch is uncapped without ``linear_beta``.

    Shapes: gate, up [T, F] -> y [T, F].
    """

    OPTIONAL = ("linear_beta",)
    EQUATION = "5.3"
    gate: Operand[Tensor]
    up: Operand[Tensor]
    beta: FloatAttr
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield same("up", self.gate, self.up)
        yield same("y", self.gate, self.y)
        yield positive("beta", self.beta.value)
        cap = optional(self, "linear_beta")
        yield None if cap is None else positive("linear_beta", cap)


class SiluMul(K3Op, name="silu_mul"):
    """``y = silu(g) ⊙ u``: the activation of Kimi-Linear.

    Shapes: gate, up [T, F] -> y [T, F].
    """

    EQUATION = "5.3"
    gate: Operand[Tensor]
    up: Operand[Tensor]
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield same("up", self.gate, self.up)
        yield same("y", self.gate, self.y)
