"""The operands of a matrix product, or of two products whose sum is wanted."""

from __future__ import annotations

from dataclasses import dataclass

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile

Index = Tile | int


@dataclass(frozen=True, slots=True)
class Factors:
    """x and w of ``x wᵀ``: columns ``first .. first + K`` of x ``[T, in_cols]``, all of w ``[N, K]``."""

    x: Buffer
    w: Buffer
    K: int
    first: int

    def starts(self, block_k: int) -> range:
        """Where the blocks of K begin."""
        return range(0, self.K, block_k)

    def rows(self, t: Index, k: Index, shape: tuple[int, int]) -> Tile:
        """x of some tokens, from column k of the product on; 0 where there is none."""
        limits = (self.x.program.symbol("T"), self.first + self.K)
        return self.x.load((t, k + self.first), shape, limits=limits)


def factors_of(p: Program, dtype: str, N: int, *columns: tuple[int, int, int]) -> list[Factors]:
    """Declares x and w, and x2 and w2 where the second of ``columns`` (K, in_cols, in_offset) has a K."""
    return [
        Factors(
            p.buffer(f"x{i}", dtype, ("T", in_cols)), p.weight(f"w{i}", dtype, (N, K)), K, first
        )
        for i, (K, in_cols, first) in zip(("", "2"), columns, strict=False)
        if K
    ]
