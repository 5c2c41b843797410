"""Matrix products by outer products in registers, and the choice of form.

The order in which one element of the result is summed depends on static extents only: a token's row has
the same bits in whatever company it comes.
"""

from __future__ import annotations

from dataclasses import replace

from k3compiler.targets.cpu.along_k import FEW_ROWS, Factor, along_k, smallest
from k3compiler.targets.cpu.evaluate import LANES, load_slot, store_slot
from k3compiler.targets.cpu.graph import Op, Value
from k3compiler.targets.cpu.nests import transpose, transpose_block
from k3compiler.targets.cpu.state import Slot, State, Valid, memory_element
from k3compiler.targets.cpu.text import vector
from k3compiler.targets.cpu.views import View, release, view

_F32 = ("f32",)
_PACKED = ("f32", "bf16")


def untransposed(s: State, value: Value) -> tuple[Value, bool]:
    """A dot operand without its lazy transposes, and whether one was taken off."""
    is_transposed = False
    while value.op is not None and value.op.name == "tile.trans" and s.slot_of(value) is None:
        value, is_transposed = value.op.operands[0], not is_transposed
    return value, is_transposed


def dot(s: State, op: Op, out: Slot) -> None:
    """``tile.dot``; ``out`` holds the accumulator and receives the result."""
    (a, a_turned), (b, b_turned) = (untransposed(s, v) for v in op.operands[:2])
    rounds = op.attributes["precision"].value == "bf16"
    (m, depth), n = op.operands[0].shape, op.result.shape[1]
    parts = op.result.shape[0] // m
    inner = depth // parts
    if b_turned and not a_turned and is_skinny(m, n, inner):
        a_kinds, b_kinds = (_F32, _PACKED) if m <= n else (_PACKED, _F32)
        left = view(s, a, a_kinds, trims_rows=True, column_step=LANES, rounds=rounds)
        right = view(s, b, b_kinds, trims_rows=True, column_step=LANES, rounds=rounds)
        pairs = zip(*(_parts(s, v, 1, parts, inner) for v in (left, right)), strict=True)
        for i, (few, many) in enumerate(pairs):
            along_k(s, Factor(few, m), Factor(many, n), _block(s, out, i * m * n), inner)
        release(s, left, right)
        return
    left = view(s, a, _F32, trims_rows=True, column_step=1, rounds=rounds)
    step = transpose_block(s, b.shape, "f32") if b_turned else None
    right = view(s, b, _F32, trims_rows=not b_turned, column_step=step, rounds=rounds)
    turns, shape = {"a_turned": a_turned, "b_turned": b_turned}, (m, n, inner)
    lefts = _parts(s, left, 0 if a_turned else 1, parts, inner)
    rights = _parts(s, right, 1 if b_turned else 0, parts, inner)
    for i, pair in enumerate(zip(lefts, rights, strict=True)):
        blocked(s, *pair, _block(s, out, i * m * n), shape, **turns)


def _parts(s: State, whole: View, axis: int, parts: int, size: int) -> list[View]:
    """A view cut along rows (axis 0) or columns; the last part gives back what all borrow."""
    if parts == 1:
        return [whole]
    w, made = s.w, list[View]()
    for i in range(parts):
        first, ends = w.i64(i * size), [whole.valid.rows, whole.valid.columns]
        end = ends[axis]
        if end is not None:
            ends[axis] = w.clamp(w.sub(end, first), 0, w.i64(size))
        offset = first if axis else w.mul(first, whole.stride)
        pointer = w.address(whole.pointer, offset, memory_element(whole.dtype))
        made.append(View(pointer, whole.stride, whole.dtype, Valid(*ends)))
    made[-1].borrowed = whole.borrowed
    return made


def _block(s: State, out: Slot, start: int) -> Slot:
    """The rows of a result from element ``start`` on."""
    pointer = s.w.address(out.pointer, s.w.i64(start), out.element)
    return replace(out, pointer=pointer)


def is_skinny(m: int, n: int, inner: int) -> bool:
    """Whether sums along k beat packing the other side (each costs a sum over lanes at its end)."""
    few = min(m, n)
    return few <= FEW_ROWS and inner >= LANES * few


def blocked(
    s: State,
    left: View,
    right: View,
    out: Slot,
    shape: tuple[int, int, int],
    *,
    a_turned: bool,
    b_turned: bool,
) -> None:
    """out += A B with A ``[M, K]`` (or its transpose in memory) and B ``[K, N]`` (or its transpose).

    Gives back the buffers of both views.
    """
    w, (m, n, inner) = s.w, shape
    ends = (
        (left.valid.columns, left.valid.rows) if a_turned else (left.valid.rows, left.valid.columns)
    )
    others = (
        (right.valid.columns, right.valid.rows)
        if b_turned
        else (right.valid.rows, right.valid.columns)
    )
    rows, columns, depth = (
        smallest(s, m, ends[0]),
        smallest(s, n, others[1]),
        smallest(s, inner, ends[1], others[0]),
    )
    if b_turned:
        packed = s.allocate(inner * n)
        transpose(s, right.pointer, right.stride, packed, (n, inner), columns=depth)
        release(s, right)
        right = View(packed.pointer, w.i64(n), "f32", right.valid, packed)
    arguments = [
        (left.pointer, "!llvm.ptr"), (left.stride, "i64"), (right.pointer, "!llvm.ptr"), (right.stride, "i64"),
        (out.pointer, "!llvm.ptr"), (w.i64(n), "i64"), (rows, "i64"), (columns, "i64"), (depth, "i64"),
    ]  # fmt: skip
    block = (8, 32) if s.has_avx512 else (4, 16)
    block = min(block[0], m), min(block[1], n)
    rest = 0 if rows == w.i64(m) or block[0] == 1 else min(64, n)
    name = f"dot_{block[0]}x{block[1]}_{rest}{'_turned' if a_turned else ''}"
    s.call(name, arguments, lambda names: _Blocked(s, a_turned, *names).run(block, rest))
    release(s, left, right)


class _Blocked:
    """The body of a product function, over its arguments' names."""

    def __init__(
        self, s: State, is_turned: bool, a: str, a_stride: str, b: str, b_stride: str, out: str, out_stride: str,
        rows: str, columns: str, depth: str,
    ) -> None:  # fmt: skip
        self.s, self.w = s, s.w
        one = s.w.i64(1)
        self.a, self.a_steps = a, (one, a_stride) if is_turned else (a_stride, one)
        self.b, self.b_stride = b, b_stride
        self.out, self.out_stride = Slot(out, 0), out_stride
        self.rows, self.columns, self.depth = rows, columns, depth

    def run(self, block: tuple[int, int], rest: int) -> None:
        """Whole blocks of rows, then what is left row by row (``rest`` columns wide; 0: nothing is left)."""
        w, (rows, columns) = self.w, block
        main = self.rows
        if rest:
            main = w.sub(main, w.emit(f"arith.remui {self.rows}, {w.i64(rows)} : i64"))
        zero = w.i64(0)
        with w.loop(zero, self.columns, w.i64(columns)) as j, w.loop(zero, main, w.i64(rows)) as i:
            self.block(i.index, j.index, rows, columns)
        if rest:
            with (
                w.loop(main, self.rows, w.i64(1)) as i,
                w.loop(zero, self.columns, w.i64(rest)) as j,
            ):
                self.block(i.index, j.index, 1, rest)

    def block(self, i: str, j: str, rows: int, columns: int) -> None:
        """``rows`` x ``columns`` of sums stay in registers through the whole depth, then are added to the
        accumulator (so the error grows with the depth and the number of blocks, not with their product)."""
        s, w, width = self.s, self.w, min(columns, LANES)
        kind, parts = vector(width, "f32"), range(0, columns, width)
        lines = [w.add(i, w.i64(u)) for u in range(rows)]
        a_rows = [w.address(self.a, w.mul(line, self.a_steps[0]), "f32") for line in lines]
        starts = [w.add(w.mul(line, self.out_stride), j) for line in lines]
        places = [w.add(start, w.i64(v)) for start in starts for v in parts]
        carry = [(w.constant("0.0", kind), kind)] * len(places)
        with w.loop(w.i64(0), self.depth, w.i64(1), carry=carry) as loop:
            b_row = w.address(self.b, w.add(w.mul(loop.index, self.b_stride), j), "f32")
            b = [w.load(w.address(b_row, w.i64(v), "f32"), kind, 4) for v in parts]
            step, sums = w.mul(loop.index, self.a_steps[1]), list[str]()
            for u in range(rows):
                scalar = w.load(w.address(a_rows[u], step, "f32"), "f32", 4)
                a = w.emit(f"vector.broadcast {scalar} : f32 to {kind}")
                for v in range(len(b)):
                    total = loop.carried[u * len(b) + v]
                    sums.append(w.emit(f"math.fma {a}, {b[v]}, {total} : {kind}"))
            w.carry_on(loop, sums)
        for place, total in zip(places, loop.results, strict=True):
            before = load_slot(s, self.out, place, width)
            store_slot(s, self.out, place, width, w.emit(f"arith.addf {before}, {total} : {kind}"))
