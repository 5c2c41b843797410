"""e2m1 nibbles (MXFP4 elements) to f32 lanes."""

from __future__ import annotations

from k3compiler.targets.cpu.formats import Lanes
from k3compiler.targets.cpu.state import State

GROUP = 32
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_PERMUTE = '"llvm.x86.avx512.permvar.sf.512"'


def nibbles(s: State, source: str) -> tuple[str, str]:
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
