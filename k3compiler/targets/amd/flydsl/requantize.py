"""The first product's epilogue that leaves h as MXFP8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k3compiler.config import MX_GROUP
from k3compiler.dtypes import E4M3_CARRY, E4M3_EMAX, F32_MANTISSA_BITS, SCALE_BIAS, SCALE_NAN
from k3compiler.targets.amd.flydsl.adapter import KernelBuilder, Value
from k3compiler.targets.amd.flydsl.gemm import EQUAL, UNSIGNED_LESS, Lane
from k3compiler.targets.amd.flydsl.tiling import Tiling

_SIZE_BITS = 0x7FFF_FFFF
_E4M3_MAX = 448.0
_TILES_A_GROUP = MX_GROUP // 16


@dataclass(frozen=True, slots=True)
class Places:
    """Where a lane is in h: the block's first row and the program's first column."""

    lane: Lane
    first_row: Value
    first_column: Value


@dataclass(frozen=True, slots=True)
class Requantize:
    """Scales and e4m3 bytes of what a lane holds: four columns of one row in every tile.

    A group of 32 columns lies in two 16-column tiles over the four lane groups: of one wave, or (one tile a wave)
    of two neighbours, which then show each other their greatest exponents in LDS.
    """

    b: KernelBuilder
    t: Tiling
    at: Places
    h: Value
    h_scale: Value

    def store(self, done: Mapping[tuple[int, int], list[Value]]) -> None:
        """``done`` maps (tile of the wave, row tile) to a lane's four f32."""
        tiles = min(self.t.tiles, _TILES_A_GROUP)
        groups = [
            (m, range(first, first + tiles))
            for m in range(self.t.row_tiles)
            for first in range(0, self.t.tiles, tiles)
        ]
        sizes = [self._size([v for tile in g for v in done[tile, m]]) for m, g in groups]
        if tiles < _TILES_A_GROUP:
            sizes = self._of_both_waves(sizes)
        for (m, group), size in zip(groups, sizes, strict=True):
            scale, inverse = self._scale(size)
            for tile in group:
                self._store_values([v * inverse for v in done[tile, m]], m, tile)
            self._store_scale(scale, m, group[0])

    def _size(self, values: list[Value]) -> Value:
        """The bits of the greatest |value| of a row's columns in this wave; NaN is above all."""
        b, lane = self.b, self.at.lane.lane
        size = b.bitcast(values[0], "i32") & _SIZE_BITS
        for value in values[1:]:
            size = b.unsigned_max(size, b.bitcast(value, "i32") & _SIZE_BITS)
        for distance in (16, 32):
            size = b.unsigned_max(size, b.from_lane(size, lane ^ distance))
        return size

    def _of_both_waves(self, sizes: list[Value]) -> list[Value]:
        """The greater of this wave's and its neighbour's, by row tile, through the free half of LDS."""
        b, t, lane = self.b, self.t, self.at.lane
        free = (t.steps & 1) * t.stage_bytes
        wave_bytes = 4 * t.block_rows

        def slot(wave: Value, m: int) -> Value:
            return b.at(b.shared(), wave * wave_bytes + (lane.row << 2) + (free + 64 * m))

        for m, size in enumerate(sizes):
            b.store(size, slot(lane.wave, m))
        b.meet()
        others = [b.load(slot(lane.wave ^ 1, m), "i32") for m in range(len(sizes))]
        return [b.unsigned_max(a, o) for a, o in zip(sizes, others, strict=True)]

    def _scale(self, size: Value) -> tuple[Value, Value]:
        """The scale byte, and 2^(127 - scale) as f32."""
        b = self.b
        exponent = (size + E4M3_CARRY) >> F32_MANTISSA_BITS
        is_finite = size.compare(UNSIGNED_LESS, SCALE_NAN << F32_MANTISSA_BITS)
        scale = b.unsigned_max(exponent, E4M3_EMAX) - E4M3_EMAX
        scale = b.select(is_finite, scale, SCALE_NAN)
        power = b.select(is_finite, 2 * SCALE_BIAS - scale, SCALE_BIAS)
        return scale, b.bitcast(power << F32_MANTISSA_BITS, "f32")

    def _row(self, m: int) -> Value:
        return self.b.wide(self.at.first_row + self.at.lane.row + 16 * m)

    def _first_column(self, tile: int) -> Value:
        """Of a tile of this wave."""
        return self.at.first_column + self.at.lane.wave * (16 * self.t.tiles) + 16 * tile

    def _store_values(self, scaled: list[Value], m: int, tile: int) -> None:
        b = self.b
        word = b.to_e4m3([b.clamped(v, _E4M3_MAX) for v in scaled])
        column = self._first_column(tile) + (self.at.lane.group << 2)
        b.store(word, b.at(self.h, self._row(m) * self.t.rows + b.wide(column)))

    def _store_scale(self, scale: Value, m: int, tile: int) -> None:
        """By the lanes of the group's first four columns."""
        b, lane = self.b, self.at.lane
        is_first = lane.group.compare(EQUAL, 0)
        if self.t.tiles < _TILES_A_GROUP:
            is_first = b.op("arith.andi", (is_first, (lane.wave & 1).compare(EQUAL, 0)), "i1")
        with b.when(is_first):
            column = b.wide(self._first_column(tile) // MX_GROUP)
            at = self._row(m) * (self.t.rows // MX_GROUP) + column
            b.store(b.op("arith.trunci", (scale,), "i8"), b.at(self.h_scale, at))
