"""The grouped product itself: ``acc[n, m] = W x`` of one block of sorted rows, pipelined along K.

Weights go straight to registers, activations to LDS by asynchronous copies, one step ahead. The weights are the
matrix unit's first operand, so that a lane ends with four neighbouring columns of one row. 16-byte piece ``b`` of row
``r`` lies at ``b ^ (r % 16)`` in LDS, which spreads the banks; the copy permutes its source instead.
Source: spec 5.2, 6; the operand maps are the CDNA4 ISA's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from k3compiler.targets.amd.flydsl.adapter import Copy, KernelBuilder, Value
from k3compiler.targets.amd.flydsl.tiling import (
    BLOCK_K,
    COPY_BYTES,
    NUM_WAVES,
    OUT_OF_RANGE,
    PIECE_K,
    WAVE,
    Tiling,
)

EQUAL, SIGNED_AT_LEAST, UNSIGNED_LESS = 0, 5, 6
_PIECES = BLOCK_K // PIECE_K
_LOAD_BYTES = WAVE * COPY_BYTES
_E8M0_HALVES = (0x00FF00FF, 0xFF00FF00)


@dataclass(frozen=True, slots=True)
class Lane:
    """Where a lane is: ``row`` 0..15 and ``group`` 0..3 of its wave; ``wave`` is uniform."""

    thread: Value
    wave: Value
    lane: Value
    row: Value
    group: Value

    @staticmethod
    def of(b: KernelBuilder) -> Lane:
        thread = b.thread()
        lane = thread & (WAVE - 1)
        return Lane(thread, b.uniform(thread >> 6), lane, lane & 15, lane >> 4)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One stack of weights in the shuffled layout, at this program's expert."""

    w: Copy
    scale: Copy


@dataclass(frozen=True, slots=True)
class Rows:
    """Activations of the block: where each lane's copies start (bytes), and for MXFP8 where its scales do."""

    x: Copy
    copies: tuple[Value, ...]
    scale: Copy | None = None
    scale_rows: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Registers of one step: weight pieces ``[matrix][tile][piece]``, their scales, MXFP8 scales by row tile."""

    weights: tuple[Value, ...]
    scales: tuple[Value, ...]
    row_scales: tuple[Value, ...]

    def flat(self) -> list[Value]:
        return [*self.weights, *self.scales, *self.row_scales]


class GroupedProduct:
    """Emits the product; ``run`` returns the accumulators and, for A16W4, where scales were NaN."""

    def __init__(
        self,
        b: KernelBuilder,
        tiling: Tiling,
        lane: Lane,
        matrices: Sequence[Matrix],
        rows: Rows,
        first_tile: Value,
    ) -> None:
        self.b, self.t, self.lane, self.rows = b, tiling, lane, rows
        self.matrices, self.first_tile = tuple(matrices), first_tile
        self.stage = b.shared()
        self.odd = (first_tile & 1) << 3 if tiling.tiles == 1 else None
        self.reads = self._read_offsets()

    # -- addresses -------------------------------------------------------------------------------
    def _read_offsets(self) -> list[list[Value]]:
        """LDS offsets of the 16-byte pieces that a lane reads of its row, for each piece of K."""
        base, group, row = self.lane.row * self.t.row_bytes, self.lane.group, self.lane.row
        offsets: list[list[Value]] = []
        for piece in range(_PIECES):
            if self.t.form == "a16w4":
                places = [((group << 2) | j) ^ row for j in range(4)]
                offsets.append([base + ((place | 16 * piece) << 4) for place in places])
            else:
                places = [(group | 8 * piece) ^ row, (group | 8 * piece + 4) ^ row]
                offsets.append([base + (place << 4) for place in places])
        return offsets

    @property
    def _scale_groups(self) -> int:
        """Words of scales a lane holds of each matrix: one covers two tiles."""
        return max(1, self.t.tiles // 2)

    # -- loads of a step -------------------------------------------------------------------------
    def fill(self, step: Value, parity: Value, *, is_last: bool) -> None:
        """Starts the copies of one step into its half of LDS."""
        b, t = self.b, self.t
        base = parity * t.stage_bytes + self.lane.wave * _LOAD_BYTES
        for index, offset in enumerate(self.rows.copies):
            if is_last and t.has_tail:
                offset = self._inside(offset, index)
            there = b.at(self.stage, base + index * NUM_WAVES * _LOAD_BYTES)
            b.copy_to_shared(self.rows.x, there, offset, step * t.row_bytes)
        b.mark_copies()

    def _inside(self, offset: Value, copy: int) -> Value:
        """The offset where the piece lies in K, else one that reads zeros."""
        t = self.t
        left = (t.depth - (t.steps - 1) * BLOCK_K) * t.element_bytes // COPY_BYTES
        piece = source_piece(t, self.lane, copy)
        return self.b.select(piece.compare(UNSIGNED_LESS, left), offset, OUT_OF_RANGE)

    def load(self, step: Value) -> Loaded:
        """Starts the loads of one step's weights and scales."""
        b, t = self.b, self.t
        weights: list[Value] = []
        scales: list[Value] = []
        lane_w, lane_s = self.lane.lane << 4, self.lane.lane << 2
        for matrix in self.matrices:
            for tile in range(t.tiles):
                at = (self.first_tile + tile) * t.tile_bytes + step * (_PIECES * _LOAD_BYTES)
                weights += [
                    b.read(matrix.w, lane_w + p * _LOAD_BYTES, at, "vector<4xi32>")
                    for p in range(_PIECES)
                ]
            for group in range(self._scale_groups):
                at = ((self.first_tile >> 1) + group) * t.scale_row_bytes + step * (4 * WAVE)
                scales.append(b.read(matrix.scale, lane_s, at, "i32"))
        rows: list[Value] = []
        if self.rows.scale is not None:
            eight = step * (BLOCK_K // 32)
            rows = [
                b.read(self.rows.scale, at, eight, "vector<2xi32>") for at in self.rows.scale_rows
            ]
        return Loaded(tuple(weights), tuple(scales), tuple(rows))

    # -- one step ----------------------------------------------------------------------------------
    def compute(self, acc: list[Value], loaded: Loaded, parity: Value) -> list[Value]:
        """Every product of a step."""
        stage = self.b.at(self.stage, parity * self.t.stage_bytes)
        words = [self._tile_scales(loaded, matrix) for matrix in range(len(self.matrices))]
        for piece in range(_PIECES):
            make = self._piece_a16 if self.t.form == "a16w4" else self._piece_a8
            acc = make(acc, loaded, words, stage, piece)
        return acc

    def _tile_scales(self, loaded: Loaded, matrix: int) -> list[tuple[Value, int]]:
        """(word, low bit of the tile's byte for piece 0) of every tile of a matrix."""
        words = loaded.scales[matrix * self._scale_groups :][: self._scale_groups]
        if self.odd is not None:
            return [(words[0] >> self.odd, 0)]
        return [(words[tile // 2], 8 * (tile % 2)) for tile in range(self.t.tiles)]

    def _weights(self, loaded: Loaded, matrix: int, tile: int, piece: int) -> Value:
        return loaded.weights[(matrix * self.t.tiles + tile) * _PIECES + piece]

    def _read(self, stage: Value, place: Value, row_tile: int) -> Value:
        at = row_tile * 16 * self.t.row_bytes
        return self.b.load(self.b.at(self.b.at(stage, place), self.b.constant(at)), "vector<4xi32>")

    def _piece_a16(
        self,
        acc: list[Value],
        loaded: Loaded,
        words: list[list[tuple[Value, int]]],
        stage: Value,
        piece: int,
    ) -> list[Value]:
        """K in the order that the packed weights come: word j of a lane is k = 32 group + 8 j to + 7."""
        b, t = self.b, self.t
        factors = [[self._factor(w, bit + 16 * piece) for w, bit in matrix] for matrix in words]
        for j, place in enumerate(self.reads[piece]):
            x = [self._read(stage, place, m) for m in range(t.row_tiles)]
            index = 0
            for matrix in range(len(self.matrices)):
                for tile in range(t.tiles):
                    word = b.element(self._weights(loaded, matrix, tile, piece), j)
                    factor = factors[matrix][tile]
                    a = b.vector([b.e2m1_pair(word, factor, byte) for byte in range(4)])
                    for m in range(t.row_tiles):
                        acc[index] = b.mfma_bf16(a, x[m], acc[index])
                        index += 1
            b.keep_order()
        return acc

    def _factor(self, word: Value, bit: int) -> Value:
        """An e8m0 byte as f32; byte 0 is 2^-127 (a subnormal), 255 is dealt with at the end."""
        exponent = ((word >> bit) & 255) << 23
        return self.b.bitcast(self.b.unsigned_max(exponent, 1 << 22), "f32")

    def _piece_a8(
        self,
        acc: list[Value],
        loaded: Loaded,
        words: list[list[tuple[Value, int]]],
        stage: Value,
        piece: int,
    ) -> list[Value]:
        b, t = self.b, self.t
        shift = self.lane.group << 3
        index_of = {
            (i, tile): i * t.tiles + tile
            for i in range(len(self.matrices))
            for tile in range(t.tiles)
        }
        for m in range(t.row_tiles):
            low, high = (self._read(stage, place, m) for place in self.reads[piece])
            x = b.vector([b.element(v, i) for v in (low, high) for i in range(4)])
            x_scale = b.element(loaded.row_scales[m], piece) >> shift
            for (matrix, tile), number in index_of.items():
                word, bit = words[matrix][tile]
                a = self._weights(loaded, matrix, tile, piece)
                at = number * t.row_tiles + m
                acc[at] = b.mfma_scaled(a, x, acc[at], (word, x_scale), (bit // 8 + 2 * piece, 0))
        return acc

    # -- NaN scales of A16W4 -------------------------------------------------------------------------
    def _nan_marks(self) -> list[Value]:
        if self.t.form != "a16w4":
            return []
        return [self.b.constant(0) for _ in self.matrices for _ in range(self.t.tiles)]

    def _marked(self, marks: list[Value], loaded: Loaded) -> list[Value]:
        """The greatest scale bytes so far, of every tile."""
        if not marks:
            return marks
        words = [pair for m in range(len(self.matrices)) for pair in self._tile_scales(loaded, m)]
        masked = [word & _E8M0_HALVES[bit // 8] for word, bit in words]
        return [self.b.unsigned_max_halves(a, c) for a, c in zip(marks, masked, strict=True)]

    def nan_columns(self, marks: Sequence[Value]) -> list[list[Value]]:
        """i1 for each tile and each of a lane's four columns: some scale of that row of weights was 255."""
        b, found = self.b, list[list[Value]]()
        for index, mark in enumerate(marks):
            half = _E8M0_HALVES[0 if self.odd is not None else index % self.t.tiles % 2]
            low, high = half & 0xFFFF, half & 0xFFFF0000
            is_nan = [((mark & part) ^ part).compare(EQUAL, 0) for part in (low, high)]
            either = b.op("arith.ori", is_nan, "i1")
            lanes = b.lanes_where(either)
            lanes = lanes | (lanes >> 32)
            lanes = lanes | (lanes >> 16)
            rows = b.op("arith.trunci", (lanes,), "i32") >> (self.lane.group << 2)
            found.append([b.op("arith.trunci", (rows >> i,), "i1") for i in range(4)])
        return found

    # -- all steps -----------------------------------------------------------------------------------
    def run(self) -> tuple[list[Value], list[Value]]:
        """(accumulators ``[matrix][tile][row tile]`` of 4 f32 each, NaN marks by matrix and tile)."""
        b, t = self.b, self.t
        count = len(self.matrices) * t.tiles * t.row_tiles
        acc, marks = [b.zeros(4) for _ in range(count)], self._nan_marks()
        zero = b.constant(0)
        self.fill(zero, zero, is_last=t.steps == 1)
        loaded = self.load(zero)
        sizes = (count, len(marks), len(loaded.weights), len(loaded.scales), len(loaded.row_scales))

        def advance(step: Value, carry: Sequence[Value], *, is_last: bool = False) -> list[Value]:
            acc, marks, *now = _split(carry, sizes)
            self._arrive()
            self.fill(step + 1, (step + 1) & 1, is_last=is_last)
            ahead = self.load(step + 1)
            current = Loaded(*(tuple(part) for part in now))
            acc = self.compute(acc, current, step & 1)
            return [*acc, *self._marked(marks, current), *ahead.flat()]

        carry = [*acc, *marks, *loaded.flat()]
        looped = max(0, t.steps - 2)
        if looped:
            carry = b.loop(looped, carry, advance)
        if t.steps > 1:
            carry = advance(b.constant(looped), carry, is_last=True)
        acc, marks, *now = _split(carry, sizes)
        self._arrive()
        last = Loaded(*(tuple(part) for part in now))
        acc = self.compute(acc, last, b.constant((t.steps - 1) & 1))
        return acc, self._marked(marks, last)

    def _arrive(self) -> None:
        """This wave's copies have landed, then everybody's have; everybody is done with the other half."""
        self.b.wait_for_copies()
        self.b.barrier()


def source_piece(t: Tiling, lane: Lane, copy: int) -> Value:
    """Which 16-byte piece of its row a lane copies."""
    return (lane.thread & (t.row_pieces - 1)) ^ (copied_row(t, lane, copy) & 15)


def copied_row(t: Tiling, lane: Lane, copy: int) -> Value:
    """Which row of the block a lane copies a piece of."""
    return lane.thread // t.row_pieces + copy * (WAVE * NUM_WAVES // t.row_pieces)


def _split(values: Sequence[Value], sizes: Sequence[int]) -> list[list[Value]]:
    parts: list[list[Value]] = []
    start = 0
    for size in sizes:
        parts.append(list(values[start : start + size]))
        start += size
    return parts
