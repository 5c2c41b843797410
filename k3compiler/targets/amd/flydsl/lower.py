"""From a fused ``moe.gate_up`` or ``moe.down`` to a FlyDSL kernel with the tile program's own arguments and grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from k3compiler.targets.amd.flydsl.adapter import KernelBuilder, Value
from k3compiler.targets.amd.flydsl.gemm import (
    SIGNED_AT_LEAST,
    GroupedProduct,
    Lane,
    Matrix,
    Rows,
    copied_row,
    source_piece,
)
from k3compiler.targets.amd.flydsl.requantize import Places, Requantize
from k3compiler.targets.amd.flydsl.tiling import NUM_WAVES, OUT_OF_RANGE, WAVE, Tiling

FAMILIES = ("moe_gate_up", "moe_down")
_LESS = 4
_TINY_TANH = 0.04
_NAN = 0x7FC00000
_LOG2E = math.log2(math.e)


def lower(
    family: str, params: Mapping[str, Any], names: Sequence[tuple[str, bool]], symbol: str
) -> KernelBuilder:
    """The kernel.

    Args:
        family: one of FAMILIES.
        params: the tile program's static parameters.
        names: the program's arguments in order, and whether each is a buffer.
        symbol: the kernel's name.
    """
    tiling = Tiling.of(family, params)
    kinds = ["!llvm.ptr<1>" if is_buffer else "i32" for _, is_buffer in names]
    b = KernelBuilder(symbol, kinds, threads=WAVE * NUM_WAVES)
    given = {name: value for (name, _), value in zip(names, b.arguments, strict=True)}
    make = _GateUp if family == "moe_gate_up" else _Down
    make(b, tiling, params, given).emit()
    return b


class _Kernel:
    """What both products share."""

    weights: tuple[tuple[str, str], ...]

    def __init__(
        self,
        b: KernelBuilder,
        tiling: Tiling,
        params: Mapping[str, Any],
        given: Mapping[str, Value],
    ) -> None:
        self.b, self.t, self.params, self.given = b, tiling, params, given
        self.lane = Lane.of(b)
        block = b.workgroup(1)
        self.expert = b.uniform(b.load(b.at(given["block_expert"], b.wide(block) << 2), "i32"))
        self.first = block * tiling.block_rows
        self.first_column = b.workgroup(0) * tiling.block_n

    def emit(self) -> None:
        with self.b.when(self.expert.compare(SIGNED_AT_LEAST, 0)):
            first_tile = (self.first_column >> 4) + self.lane.wave * self.t.tiles
            matrices = [self._matrix(*names) for names in self.weights]
            product = GroupedProduct(self.b, self.t, self.lane, matrices, self._rows(), first_tile)
            acc, marks = product.run()
            self._finish(acc, product.nan_columns(marks))

    def _matrix(self, w: str, scale: str) -> Matrix:
        b, t = self.b, self.t
        expert = b.wide(self.expert)
        parts = ((w, t.expert_bytes), (scale, t.expert_scale_bytes))
        views = [
            b.buffer(b.at(self.given[n], expert * size), b.constant(size)) for n, size in parts
        ]
        return Matrix(views[0], views[1])

    def _rows(self) -> Rows:
        raise NotImplementedError

    def _finish(self, acc: list[Value], nan: list[list[Value]]) -> None:
        raise NotImplementedError

    # -- helpers -----------------------------------------------------------------------------------
    def _pair(self, row: Value) -> Value:
        """The pair of a row of the block, or -1."""
        b = self.b
        return b.load(b.at(self.given["pairs"], b.wide(self.first + row) << 2), "i32")

    def _column(self, tile: int) -> Value:
        """The first of a lane's four columns of the result."""
        of_wave = self.lane.wave * (16 * self.t.tiles) + tile * 16
        return self.first_column + of_wave + (self.lane.group << 2)

    def _parts(self, acc: Value, nan: list[Value] | None) -> list[Value]:
        """A lane's four columns as f32, NaN where a scale was."""
        b = self.b
        parts = [b.element(acc, i, "f32") for i in range(4)]
        if nan is None:
            return parts
        poison = b.bitcast(b.constant(_NAN), "f32")
        return [b.select(is_nan, poison, part) for is_nan, part in zip(nan, parts, strict=True)]

    def _store(
        self, parts: Sequence[Value], buffer: str, row: Value, column: Value, width: int
    ) -> None:
        b = self.b
        at = (b.wide(row) * width + b.wide(column)) << 1
        b.store(b.to_bf16(parts), b.at(self.given[buffer], at))


class _GateUp(_Kernel):
    """``h = act(w1 x, w3 x)`` of gathered rows."""

    weights = (("w1", "s1"), ("w3", "s3"))

    def _rows(self) -> Rows:
        b, t, top_k = self.b, self.t, self.params["top_k"]
        is_mx = t.form == "a8w4"
        columns = t.depth if is_mx else self.params["in_cols"]
        row_bytes = columns * t.element_bytes
        skipped = 0 if is_mx else self.params["in_offset"] * t.element_bytes
        tokens = self.given["T"]
        copies: list[Value] = []
        for copy in range(t.copies):
            pair = self._pair(copied_row(t, self.lane, copy))
            at = (pair // top_k) * row_bytes + (source_piece(t, self.lane, copy) << 4) + skipped
            copies.append(b.select(pair.compare(SIGNED_AT_LEAST, 0), at, OUT_OF_RANGE))
        x = b.buffer(self.given["x"], tokens * row_bytes)
        if not is_mx:
            return Rows(x, tuple(copies))
        scale_rows: list[Value] = []
        for m in range(t.row_tiles):
            pair = self._pair(self.lane.row + 16 * m)
            at = (pair // top_k) * (t.depth // 32)
            scale_rows.append(b.select(pair.compare(SIGNED_AT_LEAST, 0), at, OUT_OF_RANGE))
        scale = b.buffer(self.given["x_scale"], tokens * (t.depth // 32))
        return Rows(x, tuple(copies), scale, tuple(scale_rows))

    def _finish(self, acc: list[Value], nan: list[list[Value]]) -> None:
        t, half = self.t, self.t.tiles * self.t.row_tiles
        done: dict[tuple[int, int], list[Value]] = {}
        for tile in range(t.tiles):
            gate_nan, up_nan = (nan[tile], nan[t.tiles + tile]) if nan else (None, None)
            for m in range(t.row_tiles):
                index = tile * t.row_tiles + m
                gates = self._parts(acc[index], gate_nan)
                ups = self._parts(acc[half + index], up_nan)
                out = [self._activated(g, u) for g, u in zip(gates, ups, strict=True)]
                done[tile, m] = out
        if self.params["dtype"] == "e4m3":
            places = Places(self.lane, self.first, self.first_column)
            Requantize(self.b, t, places, self.given["h"], self.given["h_scale"]).store(done)
            return
        for (tile, m), out in done.items():
            row = self.first + self.lane.row + 16 * m
            self._store(out, "h", row, self._column(tile), t.rows)

    # -- activation, spec 5.3 ------------------------------------------------------------------------
    def _activated(self, gate: Value, up: Value) -> Value:
        if self.params["activation"] == "silu":
            return gate * self._sigmoid(gate) * up
        beta, linear = self.params["beta"], self.params["linear_beta"]
        capped = up if linear is None else self._tanh(up * (1 / linear)) * linear
        return self._tanh(gate * (1 / beta)) * beta * self._sigmoid(gate) * capped

    def _sigmoid(self, x: Value) -> Value:
        return self.b.reciprocal(self.b.exp2(x * -_LOG2E) + 1.0)

    def _tanh(self, x: Value) -> Value:
        """sign(x) (1 - t) / (1 + t), t = e^(-2|x|); x - x^3/3 near 0 (FlyDSL's own yields NaN)."""
        b = self.b
        size = b.absolute(x)
        t = b.exp2(size * (-2 * _LOG2E))
        far = (1.0 - t) * b.reciprocal(t + 1.0)
        sign = b.bitcast(x, "i32") & 0x8000_0000
        signed = b.bitcast(b.bitcast(far, "i32") | sign, "f32")
        near = x * (1.0 - x * x * (1 / 3))
        return b.select(size.compare(_LESS, _TINY_TANH), near, signed)


class _Down(_Kernel):
    """``y[pair] = weights[pair] (w2 h)`` of the block's own rows."""

    weights = (("w2", "s2"),)

    def _rows(self) -> Rows:
        b, t = self.b, self.t
        row_bytes = t.depth * t.element_bytes
        copies = tuple(
            copied_row(t, self.lane, c) * row_bytes + (source_piece(t, self.lane, c) << 4)
            for c in range(t.copies)
        )
        first = b.wide(self.first)
        x = b.buffer(b.at(self.given["x"], first * row_bytes), b.constant(t.block_rows * row_bytes))
        if t.form != "a8w4":
            return Rows(x, copies)
        scale_bytes = t.depth // 32
        start = b.at(self.given["x_scale"], first * scale_bytes)
        scale = b.buffer(start, b.constant(t.block_rows * scale_bytes))
        rows = tuple((self.lane.row + 16 * m) * scale_bytes for m in range(t.row_tiles))
        return Rows(x, copies, scale, rows)

    def _finish(self, acc: list[Value], nan: list[list[Value]]) -> None:
        b, t = self.b, self.t
        for m in range(t.row_tiles):
            pair = self._pair(self.lane.row + 16 * m)
            with b.when(pair.compare(SIGNED_AT_LEAST, 0)):
                share = b.load(b.at(self.given["weights"], b.wide(pair) << 2), "f32")
                for tile in range(t.tiles):
                    parts = self._parts(acc[tile * t.row_tiles + m], nan[tile] if nan else None)
                    out = [part * share for part in parts]
                    self._store(out, "y", pair, self._column(tile), t.rows)
