"""The experts' products on Hopper from weights laid out as planes (package/shuffles.py): ``form`` "planes".

A plane's 32 columns of K share one scale, and its e2m1 bits lie where bf16 has them, so a weight costs two instructions
(tile.mx4_plane) and goes from shared memory to the matrix unit's left operand in registers: weights are rows, sorted
rows of activations columns. Arguments and grid are those of the family's own program in kernels/moe_experts.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3compiler.config import MX_GROUP
from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.ops import Tile as TileDialect
from k3compiler.dialects.tile.values import Tile, dot, mx4_plane, where
from k3compiler.ir.bindings import ir
from k3compiler.kernels import moe_one_planes
from k3compiler.kernels.activation import gated
from k3compiler.kernels.moe_route import token_of
from k3compiler.kernels.mx_quantize import rounded_to_mxfp8
from k3compiler.package.shuffles import PLANE_DEPTH, PLANE_UNIT

PLANES = PLANE_DEPTH // MX_GROUP
Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Stacked weights ``[experts, N, K]``: words ``[experts, steps, N, 32]`` and scales ``[experts, steps, N]``."""

    words: Buffer
    scales: Buffer
    block_n: int

    @staticmethod
    def declare(p: Program, name: str, params: Params, rows: int, columns: int) -> _Matrix:
        steps = -(-columns // PLANE_DEPTH)
        words = p.buffer(name, "i16", (params["experts"], steps, rows, MX_GROUP))
        scales = p.buffer(name.replace("w", "s"), "i32", (params["experts"], steps, rows))
        return _Matrix(words, scales, params["block_n"])

    def load(self, expert: Tile, step: Tile, n: Tile) -> tuple[Tile, Tile]:
        words = self.words.load((expert, step, n, 0), (self.block_n, MX_GROUP))
        return words, self.scales.load((expert, step, n), (self.block_n,)).expand(1)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Activations of one block, the columns of one plane at a time, as bf16."""

    x: Buffer
    first: Tile | int
    tokens: Tile | None
    end: Tile
    offset: int
    width: int
    block_rows: int

    def load(self, group: Tile) -> Tile:
        return self.x.load(
            (self.first, group * MX_GROUP + self.offset),
            (self.block_rows, MX_GROUP),
            rows=self.tokens,
            limits=(self.end, self.offset + self.width),
        )


def _products(
    p: Program, params: Params, rows: _Rows, matrices: list[_Matrix], expert: Tile, n: Tile
) -> list[Tile]:
    """``W x^T`` of every matrix, ``[block_n, block_rows]`` f32 in units of 2^-PLANE_UNIT."""
    shape = (params["block_n"], params["block_rows"])
    start = [p.zeros(shape) for _ in matrices]
    with p.loop(0, -(-rows.width // PLANE_DEPTH), carry=start) as (step, sums):
        loaded = [m.load(expert, step, n) for m in matrices]
        totals = list(sums)
        for plane in range(PLANES):
            x = rows.load(step * PLANES + plane).T
            for i, (words, scales) in enumerate(loaded):
                totals[i] = dot(mx4_plane(words, scales, plane), x, totals[i])
        p.yield_(*totals)
    return [total * 2.0**PLANE_UNIT for total in p.results()]


def gate_up(p: Program, params: Params) -> None:
    """moe_gate_up, argument for argument."""
    inner, width, block_n = params["inner"], params["width"], params["block_n"]
    x = p.buffer("x", "bf16", ("T", params["in_cols"]))
    matrices = [_Matrix.declare(p, name, params, inner, width) for name in ("w1", "w3")]
    pairs = p.buffer("pairs", "i32", ("ROWS",))
    block_expert = p.buffer("block_expert", "i32", ("NB",))
    h = p.buffer("h", params["dtype"], ("ROWS", inner), "w")
    n, block = p.program_id(0) * block_n, p.program_id(1)
    rows_a_block = params["block_rows"]
    expert, first = block_expert.load((block,)), block * rows_a_block
    with p.when(expert >= 0):
        tokens = token_of(pairs.load((first,), (rows_a_block,), other=-1), params["top_k"])
        offset = params["in_offset"]
        rows = _Rows(x, 0, tokens, p.symbol("T"), offset, width, rows_a_block)
        gate, up = _products(p, params, rows, matrices, expert, n)
        caps = {name: params.get(name) for name in ("beta", "linear_beta")}
        out = gated(gate, up, activation=params["activation"], **caps)
        if params.get("rounds"):
            h.store((first, n), rounded_to_mxfp8(out.T, rows_a_block, block_n).to(params["dtype"]))
        else:
            h.store((first, n), out.to(params["dtype"]).T)
    p.grid(f"cdiv({inner}, {block_n})", "NB")


def down(p: Program, params: Params) -> None:
    """moe_down, argument for argument."""
    inner, width, block_n = params["inner"], params["width"], params["block_n"]
    x = p.buffer("x", "bf16", ("ROWS", inner))
    matrix = _Matrix.declare(p, "w2", params, width, inner)
    pairs = p.buffer("pairs", "i32", ("ROWS",))
    block_expert = p.buffer("block_expert", "i32", ("NB",))
    weights = p.buffer("weights", "f32", ("T", params["top_k"]))
    y = p.buffer("y", params["out_dtype"], ("PAIRS", width), "w")
    n, block = p.program_id(0) * block_n, p.program_id(1)
    rows_a_block, choices = params["block_rows"], params["block_choices"]
    expert, first = block_expert.load((block,)), block * rows_a_block
    with p.when(expert >= 0):
        pair = pairs.load((first,), (rows_a_block,), other=-1)
        end = first + rows_a_block
        rows = _Rows(x, first, None, end, 0, inner, rows_a_block)
        (acc,) = _products(p, params, rows, [matrix], expert, n)
        tokens = token_of(pair, params["top_k"])
        shares = weights.load((0, 0), (rows_a_block, choices), rows=tokens)
        choice = pair - tokens * params["top_k"]
        mine = p.arange(choices).expand(0).eq(choice.expand(1))
        share = where(mine, shares, 0.0).sum(1)
        y.store((0, n), (acc * share.expand(0)).to(params["out_dtype"]).T, rows=pair)
    p.grid(f"cdiv({width}, {block_n})", "NB")


BODIES = {"moe_gate_up": gate_up, "moe_down": down, **moe_one_planes.BODIES}


def planes_program(family: str, params: Params, *, symbol: str, label: str) -> ir.Module:
    """The tile program that reads weights as planes, in a context of its own."""
    context = ir.Context()
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        TileDialect.load()
        program = Program(symbol, label)
        with program.body():
            BODIES[family](program, params)
        return program.module
