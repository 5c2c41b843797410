"""The experts' matrices for one token, without the matrix unit (kernels/gemv.py says why), from weights as stored.

A chosen expert is a block of sorted rows whose first is the token's. What an NVIDIA chip runs is in
kernels/moe_one_planes.py; these programs mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3compiler.config import MX_GROUP
from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, where
from k3compiler.kernels.activation import gated
from k3compiler.kernels.mx_quantize import power
from k3compiler.package.shuffles import PLANE_DEPTH

HALF = MX_GROUP // 2  # bytes of a group's values


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Stacked packed weights ``[experts, N, K/2]`` with scales ``[experts, N, K/32]``."""

    w: Buffer
    scale: Buffer
    block_n: int

    @staticmethod
    def declare(p: Program, name: str, shape: tuple[int, int, int], block_n: int) -> _Matrix:
        experts, n, k = shape
        w = p.weight(name, "i8", (experts, n, k // 2))
        scale = p.weight(name.replace("w", "s"), "i8", (experts, n, k // MX_GROUP))
        return _Matrix(w, scale, block_n)

    def products(self, expert: Tile, n: Tile, group: Tile, x: tuple[Tile, Tile]) -> Tile:
        """Of one group of columns with x (even columns, odd ones): ``[block_n, 16]``."""
        packed = self.w.load((expert, n, group * HALF), (self.block_n, HALF)).to("i32")
        exponent = self.scale.load((expert, n, group), (self.block_n,), dims=(1,)).to("i32")
        even, odd = (
            _value(nibble) * half.expand(0)
            for nibble, half in zip((packed, packed >> 4), x, strict=True)
        )
        return (even + odd) * power(exponent).expand(1)


def _value(nibbles: Tile) -> Tile:
    """f32 of the e2m1 in the low four bits: exponent and mantissa in their places from 1 on, halves below."""
    code = nibbles & 7
    size = where(code < 2, code.to("f32") * 0.5, ((code << 22) + (126 << 23)).bitcast("f32"))
    return where((nibbles & 8) > 0, -size, size)


def _columns(x: Buffer, row: Tile | int, column: Tile | int, end: Tile | int) -> tuple[Tile, Tile]:
    """A group's even and odd columns of a row, f32; nothing from column ``end`` on."""
    even = x.program.arange(HALF) * 2
    loaded = [
        x.load((row, column), (HALF,), rows=even + odd, dims=(1,), limits=(end,)) for odd in (0, 1)
    ]
    return loaded[0].to("f32"), loaded[1].to("f32")


def moe_gate_up_one(
    p: Program,
    *,
    experts: int,
    inner: int,
    width: int,
    top_k: int,
    in_cols: int,
    in_offset: int,
    format: str,
    activation: str,
    beta: float | None = None,
    linear_beta: float | None = None,
    block_rows: int,
    block_n: int,
    block_k: int,
    spread: int,
    dtype: str,
) -> None:
    """``h = act(x w1ᵀ, x w3ᵀ)`` in the first row of every block; programs (columns of h, block).

    Blocks whose block_expert is -1, and the other rows, stay unwritten; there are ``top_k`` blocks at most. ``block_k``
    columns of a row of weights are asked for in one load; with ``spread`` above 1 they are as many steps of the
    matrix unit, side by side.

    Shapes: x ``[1, in_cols]`` (``width`` columns from ``in_offset``); w1, w3 i8 ``[experts, inner, width/2]`` with s1,
    s3 i8 ``[.., width/32]``; block_expert ``[NB]`` i32 -> h ``[ROWS, inner]``. Source: spec 5.2, 5.3, 6.
    """
    assert format == "a16w4" and top_k > 0
    assert spread == 1 or block_k == PLANE_DEPTH * spread
    x = p.buffer("x", dtype, ("T", in_cols))
    shape = (experts, inner, width)
    w1, w3 = (_Matrix.declare(p, name, shape, block_n) for name in ("w1", "w3"))
    block_expert = p.buffer("block_expert", "i32", ("NB",))
    h = p.buffer("h", dtype, ("ROWS", inner), "w")
    n, block = p.program_id(0) * block_n, p.program_id(1)
    expert = block_expert.load((block,))
    with p.when(expert >= 0):
        start = [p.zeros((block_n, HALF))] * 2
        with p.loop(0, width // MX_GROUP, carry=start) as (group, (gate, up)):
            columns = _columns(x, 0, group * MX_GROUP + in_offset, in_offset + width)
            p.yield_(
                gate + w1.products(expert, n, group, columns),
                up + w3.products(expert, n, group, columns),
            )
        gate, up = (total.sum(1) for total in p.results())
        out = gated(gate, up, activation=activation, beta=beta, linear_beta=linear_beta)
        h.store((block * block_rows, n), out.to(dtype))
    p.grid(f"cdiv({inner}, {block_n})", "NB")


def moe_down_one(
    p: Program,
    *,
    experts: int,
    inner: int,
    width: int,
    top_k: int,
    format: str,
    block_rows: int,
    block_choices: int,
    block_n: int,
    together: int,
    dtype: str,
    out_dtype: str,
) -> None:
    """``r = Σ weights[choice] (h w2ᵀ)`` over the blocks in use: moe_down and moe_combine, without a norm.

    ``block_choices`` is the power of two that holds K; a program's ``block_n`` columns of r come in ``together`` tiles.

    Shapes: x ``[ROWS, inner]`` (h); w2 i8 ``[experts, width, inner/2]`` with s2 i8 ``[.., inner/32]``; pairs
    ``[ROWS]``, block_expert ``[NB]`` i32; weights ``[1, K]`` f32 -> r ``[1, width]``. Source: spec 5.2, 6, trap 7.
    """
    assert format == "a16w4" and block_n % together == 0 and block_choices >= top_k
    x = p.buffer("x", dtype, ("ROWS", inner))
    w2 = _Matrix.declare(p, "w2", (experts, width, inner), block_n)
    pairs = p.settled("pairs", "i32", ("ROWS",))
    block_expert = p.settled("block_expert", "i32", ("NB",))
    weights = p.settled("weights", "f32", ("T", top_k))
    r = p.buffer("r", out_dtype, ("T", width), "w")
    n = p.program_id(0) * block_n
    with p.loop(0, p.symbol("NB"), carry=[p.zeros((block_n,))]) as (block, (total,)):
        expert = block_expert.load((block,))
        is_used, nothing = expert >= 0, p.constant(0, "i32")
        end, expert = where(is_used, p.constant(inner, "i32"), 0), where(is_used, expert, nothing)
        choice = where(is_used, pairs.load((block * block_rows,)), nothing)
        with p.loop(0, inner // MX_GROUP, carry=[p.zeros((block_n, HALF))]) as (group, (acc,)):
            columns = _columns(x, block * block_rows, group * MX_GROUP, end)
            p.yield_(acc + w2.products(expert, n, group, columns))
        (acc,) = p.results()
        share = weights.load((0, choice))
        p.yield_(total + where(is_used, acc.sum(1) * share, 0.0))
    (total,) = p.results()
    r.store((0, n), total.to(out_dtype))
    p.grid(f"cdiv({width}, {block_n})")
