"""Products of MX operands: e2m1 nibbles and e4m3 bytes with one e8m0 scale per 32 elements along K."""

from __future__ import annotations

from k3compiler.targets.cpu.along_k import FEW_ROWS, Factor, along_k
from k3compiler.targets.cpu.dots import blocked
from k3compiler.targets.cpu.formats import Lanes, e8m0_to_f32, to_f32, to_i32
from k3compiler.targets.cpu.graph import Op, Value
from k3compiler.targets.cpu.nests import materialize
from k3compiler.targets.cpu.nibbles import GROUP, nibbles
from k3compiler.targets.cpu.state import Slot, State, Valid
from k3compiler.targets.cpu.text import vector
from k3compiler.targets.cpu.views import View, release, view


def dot_scaled(s: State, op: Op, out: Slot) -> None:
    """``tile.dot_scaled``; ``out`` holds the accumulator and receives the result."""
    scales = iter(op.operands[3:])
    sides = [
        _Side(s, value, next(scales) if has_scale else None, op.attributes[f"{name}_format"].value)
        for name, value, has_scale in zip(
            "ab", op.operands[:2], op.attributes["scales"], strict=True
        )
    ]
    (m, n), inner = op.result.shape, sides[0].inner
    if min(m, n) > FEW_ROWS:
        left, right = sides[0].decoded(trims_rows=True), sides[1].decoded(trims_rows=False)
        blocked(s, left, right, out, (m, n, inner), a_turned=False, b_turned=True)
        return
    few, many = (sides[0], sides[1]) if m <= n else (sides[1], sides[0])
    small = few.decoded(trims_rows=True)
    if many.form == "e2m1":
        small = _regrouped(s, small, few.rows, inner)
        large = Factor(
            view(s, many.value, ("i8",), trims_rows=True, column_step=GROUP // 2),
            many.rows,
            many.scales(),
        )
    else:
        large = Factor(many.decoded(trims_rows=True), many.rows)
    left, right = (Factor(small, few.rows), large) if m <= n else (large, Factor(small, few.rows))
    along_k(s, left, right, out, inner)
    release(s, small, large.view)
    if large.scales is not None:
        s.release(large.scales)


class _Side:
    """One operand with its scales."""

    def __init__(self, s: State, value: Value, scale: Value | None, form: str) -> None:
        self.s, self.value, self.scale, self.form = s, value, scale, form
        self.rows = value.shape[0]
        self.inner = value.shape[1] * (2 if form == "e2m1" else 1)

    def scales(self) -> Slot:
        """All scales of the tile as f32."""
        assert self.scale is not None
        slot = self.s.allocate(self.scale.size)

        def convert(lanes: str, width: int | None) -> str:
            n = Lanes(self.s.w, width)
            return e8m0_to_f32(n, to_i32(n, lanes, "i8"))

        materialize(self.s, self.scale, slot, convert=convert)
        return slot

    def decoded(self, *, trims_rows: bool) -> View:
        """The operand as rows of f32."""
        s, w = self.s, self.s.w
        if self.scale is None:
            return view(s, self.value, ("f32",), trims_rows=trims_rows)
        packed, scales = (
            view(s, self.value, (self.value.dtype,), trims_rows=trims_rows),
            self.scales(),
        )
        slot = s.allocate(self.rows * self.inner)
        rows = packed.valid.rows if trims_rows and packed.valid.rows else w.i64(self.rows)
        arguments = [
            (packed.pointer, "!llvm.ptr"), (packed.stride, "i64"), (scales.pointer, "!llvm.ptr"),
            (slot.pointer, "!llvm.ptr"), (rows, "i64"), (w.i64(self.inner // GROUP), "i64"),
        ]  # fmt: skip
        s.call(f"decode_{self.form}", arguments, lambda names: _decode(s, self.form, *names))
        s.release(scales)
        release(s, packed)
        return View(slot.pointer, w.i64(self.inner), "f32", Valid(packed.valid.rows), slot)


def _decode(
    s: State, form: str, packed: str, stride: str, scales: str, out: str, rows: str, groups: str
) -> None:
    """The body of the decoding function: group by group, row by row."""
    w, n, both = s.w, Lanes(s.w, 16), vector(32, "f32")
    size = GROUP // 2 if form == "e2m1" else GROUP
    with w.loop(w.i64(0), rows, w.i64(1)) as r, w.loop(w.i64(0), groups, w.i64(1)) as g:
        number = w.add(w.mul(r.index, groups), g.index)
        scalar = w.load(w.address(scales, number, "f32"), "f32", 4)
        factor = w.emit(f"vector.broadcast {scalar} : f32 to {n.f32}")
        source = w.address(packed, w.add(w.mul(r.index, stride), w.mul(g.index, w.i64(size))), "i8")
        if form == "e2m1":
            low, high = nibbles(s, source)
            order = [lane for i in range(16) for lane in (i, 16 + i)]
        else:
            raw = [w.load(w.address(source, w.i64(half), "i8"), n.i8, 1) for half in (0, 16)]
            low, high = (to_f32(n, half, "e4m3") for half in raw)
            order = list(range(32))
        low, high = n.mul(low, factor), n.mul(high, factor)
        line = w.emit(f"vector.shuffle {low}, {high} {order} : {n.f32}, {n.f32}")
        w.store(line, w.address(out, w.mul(number, w.i64(GROUP)), "f32"), both, 4)


def _regrouped(s: State, rows: View, count: int, inner: int) -> View:
    """Rows with, of each 32 elements, the even ones first, then the odd: as the nibbles of 16 bytes lie."""
    w, both = s.w, vector(32, "f32")
    slot = s.allocate(count * inner)
    order = [*range(0, 32, 2), *range(1, 32, 2)]
    last = rows.valid.rows or w.i64(count)
    with w.loop(w.i64(0), last, w.i64(1)) as r, w.loop(w.i64(0), w.i64(inner), w.i64(GROUP)) as k:
        source = w.address(rows.pointer, w.add(w.mul(r.index, rows.stride), k.index), "f32")
        line = w.load(source, both, 4)
        line = w.emit(f"vector.shuffle {line}, {line} {order} : {both}, {both}")
        place = w.add(w.mul(r.index, w.i64(inner)), k.index)
        w.store(line, w.address(slot.pointer, place, "f32"), both, 4)
    release(s, rows)
    return View(slot.pointer, w.i64(inner), "f32", rows.valid, slot)
