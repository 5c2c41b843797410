"""Products of MX operands: e2m1 nibbles and e4m3 bytes with one e8m0 scale per 32 elements along K."""

from __future__ import annotations

from k3compiler.targets.cpu.dots import Extents, along_k, blocked, row_sums, smaller
from k3compiler.targets.cpu.formats import Lanes, e8m0_to_f32, to_f32, to_i32
from k3compiler.targets.cpu.graph import Op, Value
from k3compiler.targets.cpu.nests import materialize
from k3compiler.targets.cpu.state import Slot, State
from k3compiler.targets.cpu.text import vector
from k3compiler.targets.cpu.views import View, release, view

GROUP = 32
ALONG_K_ROWS = 16
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_PERMUTE = '"llvm.x86.avx512.permvar.sf.512"'


def dot_scaled(s: State, op: Op, out: Slot) -> None:
    """``tile.dot_scaled``; ``out`` holds the accumulator and receives the result."""
    a, b = op.operands[:2]
    scales = iter(op.operands[3:])
    a_scale, b_scale = (next(scales) if has else None for has in op.attributes["scales"])
    forms = [op.attributes[f"{side}_format"].value for side in ("a", "b")]
    (m, n), inner = op.result.shape, a.shape[1] * (2 if forms[0] == "e2m1" else 1)
    left = _decoded(s, a, a_scale, forms[0], trims_rows=True)
    if m > ALONG_K_ROWS:
        right = _decoded(s, b, b_scale, forms[1], trims_rows=False)
        blocked(s, left, right, out, (m, n), a_turned=False, b_turned=True, inner=inner)
        return
    if forms[1] != "e2m1":
        right = _decoded(s, b, b_scale, forms[1], trims_rows=True)
        along_k(s, left, right, out, _extents(s, left, right, (m, n, inner)))
        release(s, left, right)
        return
    assert b_scale is not None
    _nibbles_along_k(s, left, b, b_scale, out, (m, n, inner))


def _extents(s: State, left: View, right: View, shape: tuple[int, int, int]) -> Extents:
    m, n, k = shape
    return Extents(m, n, k, smaller(s, m, left.valid.rows), smaller(s, n, right.valid.rows), s.w.i64(k))


# -- decoding ------------------------------------------------------------------------------------
def _decoded(s: State, value: Value, scale: Value | None, form: str, *, trims_rows: bool) -> View:
    """An operand as rows of f32."""
    if scale is None:
        return view(s, value, ("f32",), trims_rows=trims_rows)
    packed = view(s, value, (value.dtype,), trims_rows=trims_rows)
    scales = _scales(s, scale)
    rows, inner = value.shape[0], value.shape[1] * (2 if form == "e2m1" else 1)
    slot, w = s.allocate(rows * inner), s.w
    last = packed.valid.rows if trims_rows and packed.valid.rows else w.i64(rows)
    with w.loop(w.i64(0), last, w.i64(1)) as r, w.loop(w.i64(0), w.i64(inner // GROUP), w.i64(1)) as g:
        source = w.address(packed.pointer, w.mul(r.index, packed.stride), "i8")
        factor = _broadcast_scale(s, scales, r.index, g.index, inner // GROUP)
        bytes_of_group = GROUP // 2 if form == "e2m1" else GROUP
        source = w.address(source, w.mul(g.index, w.i64(bytes_of_group)), "i8")
        place = w.add(w.mul(r.index, w.i64(inner)), w.mul(g.index, w.i64(GROUP)))
        target = w.address(slot.pointer, place, "f32")
        _decode_group(s, source, factor, target, form)
    s.release(scales)
    release(s, packed)
    return View(slot.pointer, w.i64(inner), "f32", type(packed.valid)(packed.valid.rows, None), slot)


def _decode_group(s: State, source: str, factor: str, target: str, form: str) -> None:
    w, n = s.w, Lanes(s.w, 16)
    if form == "e2m1":
        low, high = (n.mul(x, factor) for x in _nibbles(s, source))
        kind = vector(16, "f32")
        pairs = [p for i in range(16) for p in (i, 16 + i)]
        both = w.emit(f"vector.shuffle {low}, {high} {pairs} : {kind}, {kind}")
        w.store(both, target, vector(32, "f32"), 4)
        return
    for half in (0, 16):
        raw = w.load(w.address(source, w.i64(half), "i8"), vector(16, "i8"), 1)
        value = n.mul(to_f32(n, raw, "e4m3"), factor)
        w.store(value, w.address(target, w.i64(half), "f32"), n.f32, 4)


def _scales(s: State, scale: Value) -> Slot:
    """All scales of a tile as f32."""
    slot = s.allocate(scale.size)

    def convert(lanes: str, width: int | None) -> str:
        n = Lanes(s.w, width)
        return e8m0_to_f32(n, to_i32(n, lanes, "i8"))

    materialize(s, scale, slot, convert=convert)
    return slot


def _broadcast_scale(s: State, scales: Slot, row: str, group: str, groups: int) -> str:
    w = s.w
    place = w.add(w.mul(row, w.i64(groups)), group)
    factor = w.load(w.address(scales.pointer, place, "f32"), "f32", 4)
    return w.emit(f"vector.broadcast {factor} : f32 to {vector(16, 'f32')}")


def _nibbles(s: State, source: str) -> tuple[str, str]:
    """16 bytes at ``source`` as the f32 values of their low and of their high nibbles."""
    w, n = s.w, Lanes(s.w, 16)
    codes = n.convert("extui", w.load(source, n.i8, 1), n.i8, n.i32)
    high = n.int("shrui", codes, n.i(4))
    return _e2m1(s, n, codes), _e2m1(s, n, high)


def _e2m1(s: State, n: Lanes, code: str) -> str:
    """The value of the low four bits of each lane."""
    if s.has_avx512:
        values = [*_E2M1, *(-v for v in _E2M1)]
        table = s.w.constant(f"dense<[{', '.join(str(v) for v in values)}]>", n.f32)
        return s.w.emit(
            f"llvm.call_intrinsic {_PERMUTE}({table}, {code}) : ({n.f32}, {n.i32}) -> {n.f32}"
        )
    # twice the value of each of the eight magnitudes is a nibble of this word
    shift = n.int("shli", n.int("andi", code, n.i(7)), n.i(2))
    doubled = n.int("andi", n.int("shrui", n.i(0xC8643210 - 2**32), shift), n.i(15))
    size = n.mul(n.convert("sitofp", doubled, n.i32, n.f32), n.f(0.5))
    sign = n.int("shli", n.int("andi", code, n.i(8)), n.i(28))
    return n.from_bits(n.int("ori", n.bits(size), sign))


# -- few rows ------------------------------------------------------------------------------------
def _nibbles_along_k(
    s: State, left: View, b: Value, b_scale: Value, out: Slot, shape: tuple[int, int, int]
) -> None:
    """out += A B^T with B decoded in registers. A is regrouped: of 32 elements the even ones, then the odd."""
    w, n, (m, _, inner) = s.w, Lanes(s.w, 16), shape
    packed = view(s, b, (b.dtype,), trims_rows=True)
    scales, groups = _scales(s, b_scale), inner // GROUP
    extents = _extents(s, left, packed, shape)
    regrouped = s.allocate(m * inner)
    _regroup(s, left, regrouped, extents.rows, inner)

    def step(k: str, a_row: str, b_rows: list[str], sums: list[str]) -> list[str]:
        even = w.load(w.address(a_row, k, "f32"), n.f32, 4)
        odd = w.load(w.address(a_row, w.add(k, w.i64(16)), "f32"), n.f32, 4)
        group, done = w.emit(f"arith.shrui {k}, {w.i64(5)} : i64"), list[str]()
        for handle, total in zip(b_rows, sums, strict=True):
            row, pointer = rows[handle], handle
            half = w.emit(f"arith.shrui {k}, {w.i64(1)} : i64")
            low, high = _nibbles(s, w.address(pointer, half, "i8"))
            products = n.fma(high, odd, n.mul(low, even))
            done.append(n.fma(products, _broadcast_scale(s, scales, row, group, groups), total))
        return done

    rows: dict[str, str] = {}

    def address(row: str) -> str:
        pointer = w.emit(
            f"llvm.getelementptr {packed.pointer}[{w.mul(row, packed.stride)}] : (!llvm.ptr, i64) -> !llvm.ptr, i8"
        )
        rows[pointer] = row
        return pointer

    row_sums(s, (regrouped.pointer, w.i64(inner)), address, step, 16, out, extents, stride=GROUP)
    s.release(scales)
    s.release(regrouped)
    release(s, left, packed)


def _regroup(s: State, left: View, target: Slot, rows: str, inner: int) -> None:
    w, both = s.w, vector(32, "f32")
    order = [*range(0, 32, 2), *range(1, 32, 2)]
    with w.loop(w.i64(0), rows, w.i64(1)) as r, w.loop(w.i64(0), w.i64(inner), w.i64(GROUP)) as k:
        source = w.address(left.pointer, w.add(w.mul(r.index, left.stride), k.index), "f32")
        line = w.load(source, both, 4)
        line = w.emit(f"vector.shuffle {line}, {line} {order} : {both}, {both}")
        place = w.add(w.mul(r.index, w.i64(inner)), k.index)
        w.store(line, w.address(target.pointer, place, "f32"), both, 4)
