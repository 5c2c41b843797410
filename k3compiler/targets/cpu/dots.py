"""Matrix products: a register-blocked outer-product form, and a form along k for few rows.

The order in which one element of the result is summed depends on static extents only: a token's row has
the same bits in whatever company it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from k3compiler.targets.cpu.evaluate import LANES, load_slot, store_slot
from k3compiler.targets.cpu.formats import BYTES, Lanes, to_f32
from k3compiler.targets.cpu.graph import Op, Value
from k3compiler.targets.cpu.nests import across, transpose
from k3compiler.targets.cpu.state import Slot, State, memory_element
from k3compiler.targets.cpu.text import vector
from k3compiler.targets.cpu.views import View, release, view

ALONG_K_ROWS = 8
_F32 = ("f32",)


@dataclass(slots=True)
class Extents:
    """Static extents of a product, and how much of each is not zero (i64)."""

    m: int
    n: int
    k: int
    rows: str
    columns: str
    depth: str


def untransposed(s: State, value: Value) -> tuple[Value, bool]:
    """A dot operand without its lazy transposes, and whether one was taken off."""
    is_transposed = False
    while value.op is not None and value.op.name == "tile.trans" and s.slot_of(value) is None:
        value, is_transposed = value.op.operands[0], not is_transposed
    return value, is_transposed


def smaller(s: State, extent: int, *ends: str | None) -> str:
    """The smallest of an extent and optional ends."""
    result = s.w.i64(extent)
    for end in ends:
        if end is not None:
            is_whole = result == s.w.i64(extent)
            result = end if is_whole else s.w.emit(f"arith.minsi {result}, {end} : i64")
    return result


def dot(s: State, op: Op, out: Slot) -> None:
    """``tile.dot``; ``out`` holds the accumulator and receives the result."""
    (a, a_turned), (b, b_turned) = (untransposed(s, v) for v in op.operands[:2])
    rounds = op.attributes["precision"].value == "bf16"
    m, n = op.result.shape
    if b_turned and not a_turned and m <= ALONG_K_ROWS:
        left = view(s, a, _F32, trims_rows=True, rounds=rounds)
        right = view(s, b, ("f32", "bf16"), trims_rows=True, rounds=rounds)
        along_k(s, left, right, out, Extents(
            m, n, a.shape[1], smaller(s, m, left.valid.rows), smaller(s, n, right.valid.rows), s.w.i64(a.shape[1])
        ))  # fmt: skip
        release(s, left, right)
        return
    left = view(s, a, _F32, trims_rows=True, rounds=rounds)
    right = view(s, b, _F32, trims_rows=not b_turned, rounds=rounds)
    blocked(s, left, right, out, (m, n), a_turned=a_turned, b_turned=b_turned, inner=op.operands[0].shape[1])


# -- many rows: outer products in registers ------------------------------------------------------------
def blocked(
    s: State, left: View, right: View, out: Slot, shape: tuple[int, int], *, a_turned: bool, b_turned: bool,
    inner: int,
) -> None:  # fmt: skip
    """out += A B with A ``[M, K]`` (or its transpose in memory) and B ``[K, N]`` (or its transpose)."""
    w, (m, n) = s.w, shape
    ends = (left.valid.columns, left.valid.rows) if a_turned else (left.valid.rows, left.valid.columns)
    others = (right.valid.columns, right.valid.rows) if b_turned else (right.valid.rows, right.valid.columns)
    extents = Extents(m, n, inner, smaller(s, m, ends[0]), smaller(s, n, others[1]), smaller(s, inner, ends[1], others[0]))
    steps = (w.i64(1), left.stride) if a_turned else (left.stride, w.i64(1))
    if b_turned:
        packed = s.allocate(inner * n)
        transpose(
            s, right.pointer, right.stride, packed, (n, inner), element="f32", size=4, columns=extents.depth
        )
        release(s, right)
        right = View(packed.pointer, w.i64(n), "f32", right.valid, packed)
    _Blocked(s, left.pointer, steps, right, out, extents).run()
    release(s, left, right)


@dataclass(slots=True)
class _Blocked:
    s: State
    a: str
    a_steps: tuple[str, str]
    b: View
    out: Slot
    e: Extents

    def run(self) -> None:
        w, e = self.s.w, self.e
        rows, columns = (8, 32) if self.s.has_avx512 else (4, 16)
        rows, columns = min(rows, e.m), min(columns, e.n)
        main = e.rows
        if e.rows != w.i64(e.m):
            rest = w.emit(f"arith.remui {e.rows}, {w.i64(rows)} : i64")
            main = w.sub(e.rows, rest)
        with w.loop(w.i64(0), e.columns, w.i64(columns)) as j, w.loop(w.i64(0), main, w.i64(rows)) as i:
            self.block(i.index, j.index, rows, columns)
        if main is not e.rows and rows > 1:
            columns = min(64, e.n)
            with w.loop(main, e.rows, w.i64(1)) as i, w.loop(w.i64(0), e.columns, w.i64(columns)) as j:
                self.block(i.index, j.index, 1, columns)

    def block(self, i: str, j: str, rows: int, columns: int) -> None:
        """``rows`` x ``columns`` of the result stay in registers through the whole depth."""
        s, w, width = self.s, self.s.w, min(columns, LANES)
        kind, parts = vector(width, "f32"), range(0, columns, width)
        lines = [w.add(i, w.i64(u)) for u in range(rows)]
        a_rows = [w.address(self.a, w.mul(line, self.a_steps[0]), "f32") for line in lines]
        places = [w.add(w.mul(line, w.i64(self.e.n)), w.add(j, w.i64(v))) for line in lines for v in parts]
        start = [(load_slot(s, self.out, place, width), kind) for place in places]
        with w.loop(w.i64(0), self.e.depth, w.i64(1), carry=start) as loop:
            b_row = w.address(self.b.pointer, w.add(w.mul(loop.index, self.b.stride), j), "f32")
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
            store_slot(s, self.out, place, width, total)


# -- few rows: along k ---------------------------------------------------------------------------------
Step = Callable[[str, str, list[str], list[str]], list[str]]


def along_k(s: State, left: View, right: View, out: Slot, e: Extents) -> None:
    """out += A B^T for few rows of A: rows of B are read once, straight through."""
    w, width = s.w, min(e.k, LANES)
    kind, element = vector(width, "f32"), memory_element(right.dtype)
    lanes = Lanes(w, width)

    def step(k: str, a_row: str, b_rows: list[str], sums: list[str]) -> list[str]:
        a = w.load(w.address(a_row, k, "f32"), kind, 4)
        done: list[str] = []
        for b_row, total in zip(b_rows, sums, strict=True):
            raw = w.load(w.address(b_row, k, element), vector(width, element), BYTES[right.dtype])
            done.append(lanes.fma(a, to_f32(lanes, raw, right.dtype), total))
        return done

    def address(row: str) -> str:
        return w.address(right.pointer, w.mul(row, right.stride), element)

    row_sums(s, (left.pointer, left.stride), address, step, width, out, e)


def row_sums(
    s: State,
    left: tuple[str, str],
    address: Callable[[str], str],
    step: Step,
    width: int,
    out: Slot,
    e: Extents,
    *,
    stride: int | None = None,
) -> None:
    """The loops of the form along k: four rows of B at a time, then what is left one by one.

    ``width`` lanes of sums; ``stride`` elements of k a step (default: ``width``).
    """
    w = s.w
    several = min(4, e.n)
    main = e.columns
    if e.columns != w.i64(e.n):
        main = w.sub(e.columns, w.emit(f"arith.remui {e.columns}, {w.i64(several)} : i64"))

    def rows_of_b(start: str, stop: str, count: int) -> None:
        with w.loop(start, stop, w.i64(count)) as n:
            numbers = [w.add(n.index, w.i64(u)) for u in range(count)]
            b_rows = [address(number) for number in numbers]
            with w.loop(w.i64(0), e.rows, w.i64(1)) as m:
                a_row = w.address(left[0], w.mul(m.index, left[1]), "f32")
                kind = vector(width, "f32")
                carry = [(w.constant("0.0", kind), kind)] * count
                with w.loop(w.i64(0), e.depth, w.i64(stride or width), carry=carry) as k:
                    w.carry_on(k, step(k.index, a_row, b_rows, k.carried))
                first = w.mul(m.index, w.i64(e.n))
                for number, lanes in zip(numbers, k.results, strict=True):
                    place = w.add(first, number)
                    total = across(s, "add", "f32", lanes, width)
                    before = load_slot(s, out, place, None)
                    store_slot(s, out, place, None, w.emit(f"arith.addf {before}, {total} : f32"))

    rows_of_b(w.i64(0), main, several)
    if main is not e.columns and several > 1:
        rows_of_b(main, e.columns, 1)
