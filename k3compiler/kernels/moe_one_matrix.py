"""Gate and up of one token from planes, on the matrix unit with eight steps of K side by side.

One token fills one column of a product, and its sum over K is a chain of dependent ones. Here a row of the left operand
is a step of a row of weights, and the columns on the right are x of as many steps: the chain is as much shorter, and
the sum that is wanted lies where row and column are of one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3compiler.config import MX_GROUP
from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, dot, mx4_plane, where
from k3compiler.kernels.activation import gated
from k3compiler.package.shuffles import PLANE_DEPTH, PLANE_UNIT

Params = Mapping[str, Any]
PLANES = PLANE_DEPTH // MX_GROUP


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Matrices of all experts: steps of matrices, rows of steps, the words of a row."""

    words: Buffer
    scales: Buffer

    @staticmethod
    def declare(p: Program, name: str, count: int) -> _Matrix:
        words = p.buffer(name, "i16", (count, MX_GROUP))
        return _Matrix(words, p.buffer(name.replace("w", "s"), "i32", (count,)))

    def load(self, rows: Tile) -> tuple[Tile, Tile]:
        size = rows.shape[0]
        words = self.words.load((0, 0), (size, MX_GROUP), rows=rows)
        return words, self.scales.load((0,), (size,), rows=rows).expand(1)


def gate_up_spread(p: Program, params: Params) -> None:
    """moe_gate_up_one, argument for argument."""
    inner, width, block_n = params["inner"], params["width"], params["block_n"]
    spread, steps = params["spread"], -(-width // PLANE_DEPTH)
    start = params["in_offset"] // MX_GROUP
    assert params["in_offset"] % MX_GROUP == params["in_cols"] % MX_GROUP == 0
    x = p.buffer("x", "bf16", ("T", params["in_cols"] // MX_GROUP, MX_GROUP))
    count = params["experts"] * steps * inner
    matrices = [_Matrix.declare(p, name, count) for name in ("w1", "w3")]
    block_expert = p.buffer("block_expert", "i32", ("NB",))
    h = p.buffer("h", params["dtype"], ("ROWS", inner), "w")
    n, block = p.program_id(0) * block_n, p.program_id(1)
    expert = block_expert.load((block,))
    place, column = p.arange(spread * block_n), p.arange(spread)
    step, row = place // block_n, place % block_n
    with p.when(expert >= 0):
        first = expert * (steps * inner) + n
        zero = p.zeros((spread * block_n, spread))
        with p.loop(0, -(-steps // spread), carry=[zero, zero]) as (piece, sums):
            at = step + piece * spread
            rows = where((at < steps) & (row + n < inner), at * inner + row + first, -1)
            loaded, totals = [m.load(rows) for m in matrices], list(sums)
            for plane in range(PLANES):
                groups = (column + piece * spread) * PLANES + plane
                columns = x.load(
                    (0, start, 0),
                    (spread, MX_GROUP),
                    rows=groups,
                    dims=(1, 2),
                    limits=(start + width // MX_GROUP, MX_GROUP),
                ).T
                for i, (words, scales) in enumerate(loaded):
                    totals[i] = dot(mx4_plane(words, scales, plane), columns, totals[i])
            p.yield_(*totals)
        is_own = step.expand(1).eq(column.expand(0))
        own = [where(is_own, total, 0.0).sum(1) for total in p.results()]
        gate, up = (_finished(total.reshape(spread, block_n).sum(0)) for total in own)
        caps = {name: params.get(name) for name in ("beta", "linear_beta")}
        out = gated(gate, up, activation=params["activation"], **caps)
        h.store((block * params["block_rows"], n), out.to(params["dtype"]))
    p.grid(f"cdiv({inner}, {block_n})", "NB")


def _finished(total: Tile) -> Tile:
    """Sums in units of 1; a NaN scale made them infinite."""
    return (total + total * 0.0) * 2.0**PLANE_UNIT
