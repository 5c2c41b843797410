"""The programs of kernels/moe_one.py from weights laid out as planes (package/shuffles.py): ``form`` "planes".

Two neighbouring words are one i32, and the bf16 pair of x beside them another: a shift and a mask make each of the
eight weights an f32, times 2^-126; x takes 2^63 of that and the sums the rest. A row of a tile is four i32, what a
thread loads at once: it sums its products before it scales them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from k3compiler.config import MX_GROUP
from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, minimum, where
from k3compiler.kernels.activation import gated
from k3compiler.kernels.moe_one_matrix import gate_up_spread
from k3compiler.package.shuffles import PLANE_DEPTH, PLANE_UNIT

Params = Mapping[str, Any]
Pair = tuple[Tile, Tile]  # f32: the even columns, the odd ones
PLANES = PLANE_DEPTH // MX_GROUP
QUAD = 4  # i32 that a thread loads at once
COLUMNS = 2 * QUAD  # of x that they hold
QUADS = MX_GROUP // COLUMNS  # of a plane, and of a step's words
LANES = 32
X_UNIT = 63
UNIT = 2.0 ** (PLANE_UNIT - X_UNIT)
NOWHERE = -(1 << 30)  # outside of a buffer, whatever is added to it


def _bits(pattern: int) -> int:
    """32 bits as an i32."""
    return pattern - (pattern >> 31 << 32)


HIGH, VALUE, EXPONENT = _bits(0xFFFF0000), _bits(0x81C00000), 0x7F800000


def _f32(words: Tile, left: int, mask: int) -> Tile:
    moved = words << left if left > 0 else words >> -left if left else words
    return (moved & mask).bitcast("f32")


def _weights(words: Tile, plane: int) -> Pair:
    """One plane's, times 2^-126."""
    if plane < PLANES - 1:
        return _f32(words, 16 + 3 * plane, VALUE), _f32(words, 3 * plane, VALUE)
    signs, high = (words << 1) & _bits(0x80008000), (words >> 5) & 0x01000100
    return _halves(signs | high | ((words >> 4) & 0x00C000C0))


def _halves(words: Tile) -> Pair:
    """Two bf16 as f32."""
    return (words << 16).bitcast("f32"), (words & HIGH).bitcast("f32")


def _activations(words: Tile) -> Pair:
    even, odd = _halves(words)
    return even * 2.0**X_UNIT, odd * 2.0**X_UNIT


def _scale(scales: Tile, plane: int) -> Tile:
    """2^(byte - 127) of a plane's byte; 255 is infinite, which :func:`_finished` makes NaN."""
    return _f32(scales, 23 - 8 * plane, EXPONENT)


@dataclass(frozen=True, slots=True)
class _Quads:
    """Four i32 of words in every row, and the scales beside them."""

    words: Tile
    scales: Tile

    def products(self, columns: Sequence[Pair], held: Tile) -> Tile:
        """Sums with x of the planes that x has, ``[quads]``."""
        words = self.words ^ held
        parts = [
            _sum(_weights(words, i), x) * _scale(self.scales, i) for i, x in enumerate(columns)
        ]
        return _added(parts)


def _sum(weights: Pair, x: Pair) -> Tile:
    return (weights[0] * x[0] + weights[1] * x[1]).sum(1)


def _held(p: Program, loaded: Sequence[_Quads], xs: Sequence[Tile]) -> Tile:
    """Zeros that are known when all of these are there.

    The words wait for them: the assembler would ask for one after the other, each when the products of the last are
    done.
    """
    words, scales = loaded[0].words, loaded[0].scales
    for quads in loaded[1:]:
        words, scales = words ^ quads.words, scales ^ quads.scales
    for x in xs:
        words = words ^ x
    return (words ^ scales.expand(1)) & minimum(p.symbol("NB"), 0)


def _added(parts: Sequence[Tile]) -> Tile:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _products(parts: Sequence[_Quads], columns: Sequence[Sequence[Pair]], held: Tile) -> Tile:
    return _added([part.products(x, held) for part, x in zip(parts, columns, strict=True)])


def _finished(total: Tile) -> Tile:
    """Sums in units of 1; a NaN scale made them infinite."""
    return (total + total * 0.0) * UNIT


@dataclass(frozen=True, slots=True)
class _Stack:
    """Matrices of all experts: steps of matrices, rows of steps, quads of rows."""

    words: Buffer
    scales: Buffer
    steps: int
    rows: int

    @staticmethod
    def declare(p: Program, name: str, params: Params, rows: int, columns: int) -> _Stack:
        steps = -(-columns // PLANE_DEPTH)
        count = params["experts"] * steps * rows
        words = p.weight(name, "i32", (count * QUADS, QUAD))
        return _Stack(words, p.weight(name.replace("w", "s"), "i32", (count,)), steps, rows)

    def load(self, first: Tile | int, row: Tile, quad: Tile) -> _Quads:
        """Quads ``quad`` of rows ``first + row``, counted over all matrices; nothing where that is negative."""
        size = row.shape[0]
        words = self.words.load((first * QUADS, 0), (size, QUAD), rows=row * QUADS + quad)
        return _Quads(words, self.scales.load((first,), (size,), rows=row))


def gate_up_one(p: Program, params: Params) -> None:
    """moe_gate_up_one, argument for argument."""
    if params["spread"] > 1:
        gate_up_spread(p, params)
        return
    inner, width, block_n = params["inner"], params["width"], params["block_n"]
    start = params["in_offset"] // COLUMNS
    assert params["in_offset"] % COLUMNS == params["in_cols"] % COLUMNS == 0
    x = p.buffer("x", "i32", ("T", params["in_cols"] // COLUMNS, QUAD))
    matrices = [_Stack.declare(p, name, params, inner, width) for name in ("w1", "w3")]
    block_expert = p.buffer("block_expert", "i32", ("NB",))
    h = p.buffer("h", params["dtype"], ("ROWS", inner), "w")
    p.symbol("T")  # before NB, as in the family's own arguments
    n, block = p.program_id(0) * block_n, p.program_id(1)
    expert = block_expert.load((block,))
    size = params["block_k"] // PLANE_DEPTH * QUADS
    place = p.arange(size)
    step, quad = place // QUADS, place % QUADS
    steps = matrices[0].steps
    with p.when(expert >= 0):
        rows = [minimum(n + i, inner - 1) if inner % block_n else n + i for i in range(block_n)]
        pieces = [step + at for at in range(0, steps, params["block_k"] // PLANE_DEPTH)]
        row_of = [where(s < steps, s * inner, NOWHERE // QUADS) for s in pieces]
        loaded = [
            [m.load(expert * (steps * inner) + row, s, quad) for s in row_of]
            for row in rows
            for m in matrices
        ]
        xs = [
            [
                x.load(
                    (0, start, 0),
                    (size, QUAD),
                    rows=(s * PLANES + plane) * QUADS + quad,
                    dims=(1, 2),
                    limits=(start + width // COLUMNS, QUAD),
                )
                for plane in range(PLANES)
            ]
            for s in pieces
        ]
        held = _held(p, [*chain(*loaded)], [*chain(*xs)])
        columns = [[_activations(words) for words in piece] for piece in xs]
        totals = [_products(parts, columns, held) for parts in loaded]
        lanes = min(LANES, size)
        shares = [total.reshape(size // lanes, lanes) for total in totals]
        sums = [share.sum(1) for share in shares]  # of a warp
        halves = [_side_by_side(sums[half::2]) for half in (0, 1)]
        gate, up = (_finished(half) for half in [half.sum(0) for half in halves])
        caps = {name: params.get(name) for name in ("beta", "linear_beta")}
        out = gated(gate, up, activation=params["activation"], **caps)
        h.store((block * params["block_rows"], n), out.to(params["dtype"]))
    p.grid(f"cdiv({inner}, {block_n})", "NB")


def _side_by_side(columns: Sequence[Tile]) -> Tile:
    """A tile of these columns."""
    place = columns[0].program.arange(len(columns)).expand(0)
    tile = columns[0].expand(1).to_shape((columns[0].shape[0], len(columns)))
    for i, column in enumerate(columns[1:], 1):
        tile = where(place.eq(i), column.expand(1), tile)
    return tile


def down_one(p: Program, params: Params) -> None:
    """moe_down_one, argument for argument."""
    inner, width, top_k = params["inner"], params["width"], params["top_k"]
    rows_a_block, choices = params["block_rows"], params["block_choices"]
    tile_n, row_quads = params["block_n"] // params["together"], inner // COLUMNS
    x = p.buffer("x", "i32", (top_k * rows_a_block * row_quads, QUAD))
    matrix = _Stack.declare(p, "w2", params, width, inner)
    pairs = p.settled("pairs", "i32", ("ROWS",))
    block_expert = p.settled("block_expert", "i32", ("NB",))
    weights = p.settled("weights", "f32", ("T", top_k))
    r = p.buffer("r", params["out_dtype"], ("T", width), "w")
    n = p.program_id(0) * params["block_n"]

    size = choices * tile_n * QUADS
    place = p.arange(size)  # quads of rows of blocks
    quad, row, block = place % QUADS, place // QUADS % tile_n, place // (QUADS * tile_n)
    expert = block_expert.load((0,), (size,), rows=block, other=-1)
    first = where(expert >= 0, block * rows_a_block, -1)
    tiles = range(0, params["block_n"], tile_n)
    loaded = [_rows_of(matrix, expert, row + (n + at), quad) for at in tiles]
    choice = pairs.load((0,), (size,), rows=first)
    share = weights.load((0, 0), (size,), dims=(1,), rows=where(first >= 0, choice, -1))
    start = where(first >= 0, first * row_quads + quad, NOWHERE)
    xs = [
        [
            x.load((group * QUADS, 0), (size, QUAD), rows=start)
            for group in range(step * PLANES, min((step + 1) * PLANES, inner // MX_GROUP))
        ]
        for step in range(matrix.steps)
    ]
    held = _held(p, [*chain(*loaded)], [*chain(*xs)])
    columns = [[_activations(words) for words in step] for step in xs]
    for at, parts in zip(tiles, loaded, strict=True):
        total = _products(parts, columns, held)
        total = (total * share).reshape(choices, tile_n * QUADS).sum(0)
        total = total.reshape(tile_n, QUADS).sum(1)
        r.store((0, n + at), _finished(total).to(params["out_dtype"]))
    p.grid(f"cdiv({width}, {params['block_n']})")


def _rows_of(matrix: _Stack, expert: Tile, n: Tile, quad: Tile) -> list[_Quads]:
    """Every step of rows ``n`` of the experts beside them; nothing where there is no expert."""
    is_row = (expert >= 0) & (n < matrix.rows)
    row = where(is_row, expert * (matrix.steps * matrix.rows) + n, NOWHERE // QUADS)
    return [matrix.load(step * matrix.rows, row, quad) for step in range(matrix.steps)]


BODIES = {"moe_gate_up_one": gate_up_one, "moe_down_one": down_one}
