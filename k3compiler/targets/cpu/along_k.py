"""Products A B^T where one side has few rows: sums along k, so that the other side is read once, in order.

This is the shape of decode: weights stream through at the speed of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3compiler.targets.cpu.evaluate import LANES, load_slot, store_slot
from k3compiler.targets.cpu.formats import BYTES, Lanes, to_f32
from k3compiler.targets.cpu.nests import slice_lanes, sums_of
from k3compiler.targets.cpu.nibbles import GROUP, nibbles
from k3compiler.targets.cpu.state import Slot, State, memory_element
from k3compiler.targets.cpu.text import vector
from k3compiler.targets.cpu.views import View

FEW_ROWS = 16


@dataclass(slots=True)
class Factor:
    """One side of a product: its rows, and how many there are. ``scales``: f32 ``[rows, k / 32]`` of e2m1 nibbles."""

    view: View
    rows: int
    scales: Slot | None = None

    def end(self, s: State) -> str:
        """Rows that are not zero."""
        return self.view.valid.rows or s.w.i64(self.rows)

    def columns(self, s: State) -> str | None:
        """Elements of a row past which all are zero."""
        end = self.view.valid.columns
        return end if end is None or self.scales is None else s.w.mul(end, s.w.i64(2))


def smallest(s: State, extent: int, *ends: str | None) -> str:
    """The smallest of an extent and optional ends (i64)."""
    whole = result = s.w.i64(extent)
    for end in ends:
        if end is not None:
            result = end if result == whole else s.w.emit(f"arith.minsi {result}, {end} : i64")
    return result


def along_k(s: State, left: Factor, right: Factor, out: Slot, inner: int) -> None:
    """out += A B^T; the side with fewer rows is f32, the other f32, bf16, or e2m1 nibbles (as i8).

    For nibbles the rows of the small side are regrouped: of each 32 elements the even ones, then the odd.
    """
    w = s.w
    few, many, steps = left, right, (w.i64(right.rows), w.i64(1))
    if left.rows > right.rows:
        few, many, steps = right, left, (w.i64(1), w.i64(right.rows))
    depth = smallest(s, inner, few.view.valid.columns, many.columns(s))
    nothing = w.emit("llvm.mlir.zero : !llvm.ptr") if many.scales is None else many.scales.pointer
    arguments = [
        (few.view.pointer, "!llvm.ptr"), (few.view.stride, "i64"),
        (many.view.pointer, "!llvm.ptr"), (many.view.stride, "i64"), (nothing, "!llvm.ptr"),
        (out.pointer, "!llvm.ptr"), (steps[0], "i64"), (steps[1], "i64"),
        (few.end(s), "i64"), (many.end(s), "i64"), (depth, "i64"), (w.i64(inner // GROUP), "i64"),
    ]  # fmt: skip
    dtype, width = many.view.dtype, min(inner, LANES)
    # what stays in registers: sums of (few, many) rows; decoding nibbles is shared by the few
    wanted = (4, 4) if s.has_avx512 else (4, 1) if dtype == "i8" else (1, 4)
    block = min(wanted[0], few.rows), min(wanted[1], many.rows)
    rests = (
        block[0] > 1 and few.view.valid.rows is not None,
        block[1] > 1 and many.view.valid.rows is not None,
    )
    is_few_left = few is left
    name = f"along_k_{dtype}_{width}_{block[0]}x{block[1]}_{rests[0]:d}{rests[1]:d}{is_few_left:d}"
    s.call(
        name,
        arguments,
        lambda names: _AlongK(s, dtype, width, is_few_left, *names).run(block, rests),
    )


class _AlongK:
    """The body of the product function, over its arguments' names."""

    def __init__(
        self, s: State, dtype: str, width: int, is_few_left: bool, few: str, few_stride: str,
        many: str, many_stride: str, scales: str, out: str, few_step: str, many_step: str,
        few_end: str, many_end: str, depth: str, groups: str,
    ) -> None:  # fmt: skip
        self.s, self.w, self.dtype, self.width = s, s.w, dtype, width
        self.lanes, self.element = Lanes(s.w, width), memory_element(dtype)
        self.few, self.few_stride, self.few_end, self.few_step = few, few_stride, few_end, few_step
        self.many, self.many_stride, self.many_end, self.many_step = (
            many,
            many_stride,
            many_end,
            many_step,
        )
        self.scales, self.out, self.depth, self.groups = scales, Slot(out, 0), depth, groups
        self.is_few_left = is_few_left

    def run(self, block: tuple[int, int], rests: tuple[bool, bool]) -> None:
        """Blocks of rows of the large side outside (each is read once), of the small side inside."""
        main = self._main(self.many_end, block[1], rests[1])
        self._rows_of_many(self.w.i64(0), main, block[1], block[0], rests[0])
        if rests[1]:
            self._rows_of_many(main, self.many_end, 1, block[0], rests[0])

    def _main(self, end: str, block: int, has_rest: bool) -> str:
        if not has_rest:
            return end
        return self.w.sub(end, self.w.emit(f"arith.remui {end}, {self.w.i64(block)} : i64"))

    def _rows_of_many(self, start: str, stop: str, count: int, few: int, has_rest: bool) -> None:
        w = self.w
        with w.loop(start, stop, w.i64(count)) as n:
            numbers = [w.add(n.index, w.i64(u)) for u in range(count)]
            main = self._main(self.few_end, few, has_rest)
            with w.loop(w.i64(0), main, w.i64(few)) as m:
                self._block([w.add(m.index, w.i64(u)) for u in range(few)], numbers)
            if has_rest:
                with w.loop(main, self.few_end, w.i64(1)) as m:
                    self._block([m.index], numbers)

    def _block(self, few: list[str], many: list[str]) -> None:
        """The sums of some rows with some rows, in registers along the whole of k."""
        w, kind = self.w, vector(self.width, "f32")
        a_rows = [w.address(self.few, w.mul(m, self.few_stride), "f32") for m in few]
        b_rows = [w.address(self.many, w.mul(n, self.many_stride), self.element) for n in many]
        zero, is_nibbles = w.constant("0.0", kind), self.dtype == "i8"
        step = w.i64(GROUP if is_nibbles else self.width)
        with w.loop(w.i64(0), self.depth, step, carry=[(zero, kind)] * (len(few) * len(many))) as k:
            body = self._nibble_step if is_nibbles else self._step
            w.carry_on(k, body(k.index, a_rows, b_rows, many, k.carried))
        self._add_sums(few, many, k.results)

    def _add_sums(self, few: list[str], many: list[str], lanes: list[str]) -> None:
        """Adds every vector's sum to its element of the result, a run of neighbours at a time."""
        s, w = self.s, self.w
        order = [(i, j) for i in range(len(few)) for j in range(len(many))]
        if not self.is_few_left:
            order.sort(key=lambda place: place[::-1])
        run = len(many) if self.is_few_left else len(few)
        sums = sums_of(s, [lanes[i * len(many) + j] for i, j in order], self.width)
        kind = vector(run, "f32")
        for first in range(0, len(order), run):
            i, j = order[first]
            place = w.add(w.mul(few[i], self.few_step), w.mul(many[j], self.many_step))
            part = slice_lanes(s, sums, len(order), first, run)
            before = load_slot(s, self.out, place, run)
            store_slot(s, self.out, place, run, w.emit(f"arith.addf {before}, {part} : {kind}"))

    def _step(
        self, k: str, a_rows: list[str], b_rows: list[str], _: list[str], sums: list[str]
    ) -> list[str]:
        w, kind, size = self.w, vector(self.width, self.element), BYTES[self.dtype]
        b = [w.load(w.address(row, k, self.element), kind, size) for row in b_rows]
        b = [to_f32(self.lanes, raw, self.dtype) for raw in b]
        done, totals = list[str](), iter(sums)
        for row in a_rows:
            a = w.load(w.address(row, k, "f32"), self.lanes.f32, 4)
            done += [self.lanes.fma(a, other, next(totals)) for other in b]
        return done

    def _nibble_step(
        self, k: str, a_rows: list[str], b_rows: list[str], many: list[str], sums: list[str]
    ) -> list[str]:
        w, n = self.w, self.lanes
        half = w.emit(f"arith.shrui {k}, {w.i64(1)} : i64")
        group = w.emit(f"arith.shrui {k}, {w.i64(5)} : i64")
        b: list[tuple[str, str, str]] = []
        for row, number in zip(b_rows, many, strict=True):
            low, high = nibbles(self.s, w.address(row, half, "i8"))
            factor = w.load(
                w.address(self.scales, w.add(w.mul(number, self.groups), group), "f32"), "f32", 4
            )
            b.append((low, high, w.emit(f"vector.broadcast {factor} : f32 to {n.f32}")))
        done, totals = list[str](), iter(sums)
        for row in a_rows:
            even = w.load(w.address(row, k, "f32"), n.f32, 4)
            odd = w.load(w.address(row, w.add(k, w.i64(16)), "f32"), n.f32, 4)
            for low, high, factor in b:
                products = n.fma(high, odd, n.mul(low, even))
                done.append(n.fma(products, factor, next(totals)))
        return done
