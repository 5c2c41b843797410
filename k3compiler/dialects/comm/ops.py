"""Collectives over the ranks of a group."""

from collections.abc import Iterator

from k3compiler.dialects.k3.dialect import FLOATS
from k3compiler.ir.dialect import (
    Checked,
    Dialect,
    Fault,
    IntegerAttr,
    Operand,
    Pure,
    Result,
    StringAttr,
    Tensor,
    one_of,
    ranked,
    same,
    shape,
    shaped,
    typed,
)

GROUPS = ("tp",)


class Comm(Dialect, name="comm"):
    """One op, one collective. Values differ between ranks; results of all_reduce and all_gather do not."""


class CommOp(Checked, dialect=Comm, traits=[Pure]):
    """Base of the comm ops."""


class AllReduce(CommOp, name="all_reduce"):
    """The sum over the ranks of ``group``, on every rank.

    Shapes: x [T, D] -> y [T, D].
    """

    EQUATION = "10"
    x: Operand[Tensor]
    group: StringAttr
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield one_of("group", GROUPS, self.group.value)
        yield typed("x", self.x, *FLOATS)
        yield same("y", self.x, self.y)


class AllGather(CommOp, name="all_gather"):
    """The ranks' columns beside each other, in rank order.

    Shapes: x [R, V] -> y [R, ranks*V].
    """

    EQUATION = "10"
    x: Operand[Tensor]
    group: StringAttr
    ranks: IntegerAttr
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield one_of("group", GROUPS, self.group.value)
        yield ranked("x", self.x, 2)
        yield shaped("y", self.y, None, (shape(self.x)[-1] or 0) * self.ranks.value)
        yield typed("y", self.y, str(self.x.type.element_type))


class ReduceScatter(CommOp, name="reduce_scatter"):
    """The sum over the ranks, of which each keeps its share of the columns, in rank order.

    Shapes: x [T, ranks*D] -> y [T, D].
    """

    EQUATION = "10"
    x: Operand[Tensor]
    group: StringAttr
    ranks: IntegerAttr
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield one_of("group", GROUPS, self.group.value)
        yield ranked("x", self.x, 2)
        yield shaped("x", self.x, None, (shape(self.y)[-1] or 0) * self.ranks.value)
        yield typed("y", self.y, str(self.x.type.element_type))
