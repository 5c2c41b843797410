"""How a grouped product is cut: blocks, waves, LDS, and what of it this backend can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WAVE, NUM_WAVES = 64, 4
BLOCK_K = 256  # elements of K a step
PIECE_K = 128  # of one weight load
COPY_BYTES = 16  # a lane's share of one copy or load
OUT_OF_RANGE = 0xFFFF_FFF0  # a lane offset past every buffer of up to 4 GB: reads as 0
MAX_BLOCK_ROWS = 128


@dataclass(frozen=True, slots=True)
class Tiling:
    """One program: ``block_rows`` sorted rows by ``block_n`` columns of the result, 4 waves side by side along N.

    Attributes:
        form: ``a16w4`` or ``a8w4``.
        matrices: weight matrices read together (2: gate and up).
        rows, depth: N and K of each.
        experts: how many are stacked.
        block_rows, block_n: of a program.
    """

    form: str
    matrices: int
    rows: int
    depth: int
    experts: int
    block_rows: int
    block_n: int

    @staticmethod
    def of(family: str, params: Mapping[str, Any]) -> Tiling:
        """The tiling of ``moe_gate_up`` or ``moe_down`` with these parameters."""
        is_first = family == "moe_gate_up"
        rows, depth = ("inner", "width") if is_first else ("width", "inner")
        return Tiling(
            form=params["format"],
            matrices=2 if is_first else 1,
            rows=params[rows],
            depth=params[depth],
            experts=params["experts"],
            block_rows=params["block_rows"],
            block_n=params["block_n"],
        )

    def faults(self) -> list[str]:
        """What this backend cannot do of it, in words."""
        wanted = [
            (self.form in ("a16w4", "a8w4"), f"format a16w4 or a8w4, not {self.form}"),
            (
                self.block_rows in (16, 32, 64, 128),
                f"block_rows 16, 32, 64 or 128, not {self.block_rows}",
            ),
            (self.block_n in (64, 128, 256), f"block_n 64, 128 or 256, not {self.block_n}"),
            (
                self.rows % self.block_n == 0,
                f"N a multiple of block_n, not {self.rows} of {self.block_n}",
            ),
            (self.depth % 32 == 0, f"K a multiple of 32, not {self.depth}"),
            (
                self.form != "a8w4" or self.depth % BLOCK_K == 0,
                f"K a multiple of {BLOCK_K} for a8w4, not {self.depth}",
            ),
        ]
        return [text for holds, text in wanted if not holds]

    # -- along K -----------------------------------------------------------------------------------
    @property
    def steps(self) -> int:
        return -(-self.depth // BLOCK_K)

    @property
    def has_tail(self) -> bool:
        """The last step is only partly in K."""
        return self.depth % BLOCK_K != 0

    # -- weights -----------------------------------------------------------------------------------
    @property
    def tiles(self) -> int:
        """16-row weight tiles a wave owns of each matrix."""
        return self.block_n // 16 // NUM_WAVES

    @property
    def tile_bytes(self) -> int:
        """One 16-row tile over all of K, as laid out."""
        return 16 * self.steps * BLOCK_K // 2

    @property
    def expert_bytes(self) -> int:
        return self.rows // 16 * self.tile_bytes

    @property
    def scale_row_bytes(self) -> int:
        """32 rows of scales over all of K."""
        return 32 * self.steps * BLOCK_K // 32

    @property
    def expert_scale_bytes(self) -> int:
        return self.rows // 32 * self.scale_row_bytes

    # -- activations -------------------------------------------------------------------------------
    @property
    def element_bytes(self) -> int:
        return 2 if self.form == "a16w4" else 1

    @property
    def row_bytes(self) -> int:
        """A row of one step."""
        return BLOCK_K * self.element_bytes

    @property
    def row_pieces(self) -> int:
        """16-byte pieces of a row of one step."""
        return self.row_bytes // COPY_BYTES

    @property
    def stage_bytes(self) -> int:
        """LDS of one step."""
        return self.block_rows * self.row_bytes

    @property
    def copies(self) -> int:
        """Copies of 16 bytes a lane that fill one step; 0 where one is more than the step."""
        return self.stage_bytes // (WAVE * NUM_WAVES * COPY_BYTES)

    @property
    def lds_bytes(self) -> int:
        """Two steps: one is read while the other is filled."""
        return 2 * self.stage_bytes

    @property
    def row_tiles(self) -> int:
        return self.block_rows // 16
