"""Which tiles of a program get memory, and until when.

Elementwise ops, loads and shape changes are *lazy*: they are evaluated inside the loop nest of the op that
needs them. Everything else, and what is needed more than once and is not cheap, is *stored* in a buffer.
"""

from __future__ import annotations

from k3compiler.targets.cpu.graph import Access, Op, Program, Value

_LAZY = frozenset({
    "tile.cast", "tile.bitcast", "tile.splat", "tile.expand_dims", "tile.broadcast", "tile.iota",
    "tile.reshape", "tile.load", "tile.trans",
})  # fmt: skip
_COSTS = {
    "math.exp": 15, "math.exp2": 13, "math.log": 18, "math.tanh": 22, "math.sqrt": 6, "math.rsqrt": 10,
    "arith.divf": 6, "arith.constant": 0, "tile.splat": 0, "tile.iota": 0, "tile.broadcast": 0,
    "tile.expand_dims": 0, "tile.reshape": 0, "tile.trans": 0, "tile.bitcast": 0,
}  # fmt: skip
_CAST_COSTS = {("f32", "bf16"): 5, ("f32", "e4m3"): 14, ("e4m3", "f32"): 5}
RECOMPUTE_LIMIT = 6
DEEPER_LIMIT = 2


def is_lazy_op(op: Op) -> bool:
    """Whether the op may be evaluated where its result is needed."""
    is_tile = bool(op.results) and op.results[0].shape != ()
    return is_tile and (op.name in _LAZY or op.name.startswith(("arith.", "math.")))


def is_strided(access: Access, shape: tuple[int, ...]) -> bool:
    """Whether neighbours of a run of the tile are not neighbours in memory."""
    if not shape:
        return False
    axis = access.dims[-1]
    is_column = len(shape) == 2 and shape[1] == 1 and shape[0] > 1
    if access.rows is not None and (len(shape) == 1 or is_column):
        return True
    if is_column:
        axis = access.dims[0]
    return any(extent != 1 for extent in access.buffer.extents[axis + 1 :])


def keeps_layout(value: Value) -> bool:
    """Whether a reshape's or expand_dims's result is the same run of elements as its operand."""
    assert value.op is not None
    return value.matrix is None and value.op.operands[0].matrix is None


class Plan:
    """``stored`` tiles, and ``last[value]``: the order at whose end the value's buffer is free."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ops = list(program.walk())
        self.roots: dict[Value, set[Op]] = {}
        self.stored: set[Value] = set()
        self.required: set[Value] = set()
        self._costs: dict[Value, int] = {}
        for op in reversed(self.ops):
            for value in op.results:
                self._decide(op, value)
        self.reads: dict[Op, dict[Value, bool]] = {}
        self.last: dict[Value, int] = {}
        for op in self.ops:
            if not self.is_lazy(op):
                self._record(op)

    # -- deciding ------------------------------------------------------------------------------
    def is_lazy(self, op: Op) -> bool:
        return is_lazy_op(op) and op.result not in self.stored

    def has_buffer(self, value: Value) -> bool:
        """Stored tiles, and what loops carry."""
        op = value.op
        return (
            value.shape != ()
            and op is not None
            and (value in self.stored or op.name == "scf.for" or not is_lazy_op(op))
        )

    def _decide(self, op: Op, value: Value) -> None:
        if value.shape == ():
            return
        roots: set[Op] = set()
        for user in value.users:
            roots |= self.roots[user.result] if self.is_lazy(user) else {user}
        self.roots[value] = roots
        if is_lazy_op(op):
            if roots and self._must_store(op, value, roots):
                self.stored.add(value)
            else:
                self._require_operands(op)

    def _must_store(self, op: Op, value: Value, roots: set[Op]) -> bool:
        if value in self.required:
            return not self._is_buffer_alias(op)
        if op.name == "tile.reshape" and not keeps_layout(value):
            return False  # another view of its operand's buffer
        if op.name == "tile.load":
            assert op.access is not None
            if op.access.buffer.is_written or is_strided(op.access, value.shape):
                return True
        if op.name == "tile.trans":
            return not all(
                user.name == "tile.dot" and value in user.operands[:2] for user in value.users
            )
        cost = self.cost(value)
        loops = set(op.ancestors())
        is_deeper = any(
            a.name == "scf.for" and a not in loops for r in roots for a in r.ancestors()
        )
        if is_deeper and cost > DEEPER_LIMIT:
            return True
        return len(roots) > 1 and cost * (len(roots) - 1) > RECOMPUTE_LIMIT

    def _is_buffer_alias(self, op: Op) -> bool:
        """A shape change of something stored needs no buffer of its own; the demand moves to its source."""
        if op.name in ("tile.expand_dims", "tile.reshape"):
            source = op.operands[0].op
            if source is None or not is_lazy_op(source):
                return True
            self.required.add(op.operands[0])
            return True
        return False

    def _require_operands(self, op: Op) -> None:
        """What a lazy op wants stored below it."""
        if op.name == "tile.load":
            assert op.access is not None
            if op.access.rows is not None:
                self.required.add(op.access.rows)
        elif op.name == "tile.reshape" and not keeps_layout(op.result):
            self.required.add(op.operands[0])
        elif op.name == "tile.broadcast" and op.result.matrix is not None:
            source = op.operands[0]
            is_column = source.shape[1] == 1 and source.shape[0] > 1
            if not self._is_cheap(source) if is_column else self.cost(source) > DEEPER_LIMIT:
                self.required.add(source)

    def _is_cheap(self, value: Value) -> bool:
        """Whether one element at a time may be computed again: no loads, no functions."""
        if self.has_buffer(value) or value.op is None:
            return True
        if value.op.name == "tile.load" or self.cost(value) > RECOMPUTE_LIMIT:
            return False
        return all(self._is_cheap(v) for v in value.op.operands if v.shape)

    def cost(self, value: Value) -> int:
        """Instructions a lane to compute ``value`` again (about)."""
        if value.shape == () or value.op is None:
            return 0
        if self.has_buffer(value):
            return 1
        if value not in self._costs:
            op = value.op
            own = _COSTS.get(op.name, 1)
            if op.name == "tile.cast":
                own = _CAST_COSTS.get((op.operands[0].dtype, value.dtype), 1)
            below = sum(self.cost(v) for v in op.operands) if op.name != "tile.load" else 0
            self._costs[value] = own + below
        return self._costs[value]

    # -- lifetimes -----------------------------------------------------------------------------
    def _record(self, op: Op) -> None:
        found: dict[Value, bool] = {}
        for operand in op.operands:
            self._leaves(operand, True, found)
        self.reads[op] = found
        for value in found:
            self.last[value] = max(self.last.get(value, -1), self.event(op, value))

    def pointwise_reads(self, value: Value) -> dict[Value, bool]:
        """The buffers that evaluating ``value`` reads, and whether only at the element in hand."""
        found: dict[Value, bool] = {}
        self._leaves(value, True, found)
        return found

    def _leaves(self, value: Value, pointwise: bool, found: dict[Value, bool]) -> None:
        if value.shape == () or value.op is None:
            return
        if self.has_buffer(value):
            found[value] = found.get(value, True) and pointwise
            return
        op = value.op
        if op.name in ("tile.broadcast", "tile.trans", "tile.load"):
            pointwise = False
        for operand in op.operands:
            self._leaves(operand, pointwise, found)

    def event(self, op: Op, value: Value) -> int:
        """The order at whose end ``op`` is over, seen from the block that owns ``value``."""
        assert value.op is not None
        owner = value.op if value in value.op.arguments else value.op.parent
        while op.parent is not owner:
            assert op.parent is not None, "a value is read outside the block that owns it"
            op = op.parent
        return op.end
