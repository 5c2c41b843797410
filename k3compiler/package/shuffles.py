"""Layouts that a package wants its packed weights in, by name (``weights.json``, docs/package.md).

``e2m1_16x128``: packed e2m1 ``[.., N, K/2]`` in blocks of 16 rows by 128 of K:
``[N/16][K/128][group of 32][row 16][16 B]``.
A wave's lane reads the 16 bytes of its row and group: one load of 1 KB, straight to registers.

``e8m0_32x256``: their scales ``[.., N, K/32]`` in blocks of 32 rows by 256 of K: ``[N/32][K/256][group][row 16][4]``;
byte ``2 * (which 128 of the 256) + (which 16 rows of the 32)``. A lane's word scales four products.

N is filled up to 32 rows and K to 256, with zeros. Source: the layouts of AMD's public MXFP4 kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.package.manifest import KernelRecord

Array = NDArray[Any]
ROWS, DEPTH = 32, 256


@dataclass(frozen=True, slots=True)
class Shuffle:
    """One layout: blocks of ``block_rows`` rows by ``block_bytes`` bytes of a row.

    Attributes:
        inner: a block's bytes as axes.
        order: those axes as laid out.
        depth_a_byte: elements of K one byte stands for.
    """

    block_rows: int
    block_bytes: int
    inner: tuple[int, ...]
    order: tuple[int, ...]
    depth_a_byte: int

    def shape(self, plain: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that holds the blocks of ``plain`` (rows and bytes of a row last)."""
        *outer, rows, width = plain
        row_bytes = DEPTH // self.depth_a_byte
        return (*outer, -(-rows // ROWS) * ROWS, -(-width // row_bytes) * row_bytes)

    def write(self, plain: Array, out: Array) -> None:
        """Puts one matrix ``[N, bytes]`` into its layout ``out`` (of ``shape``); needs one copy of the matrix."""
        padded = np.zeros(out.shape, out.dtype)
        padded[: plain.shape[0], : plain.shape[1]] = plain
        rows, width = out.shape
        grid = rows // self.block_rows, width // self.block_bytes
        split = padded.reshape(grid[0], *self._row_axes, grid[1], *self._byte_axes)
        num_rows = len(self._row_axes)
        places = [1 + i if i < num_rows else 2 + i for i in self.order]
        laid = split.transpose(0, 1 + num_rows, *places)
        out[...] = laid.reshape(out.shape)

    @property
    def _row_axes(self) -> tuple[int, ...]:
        axes: tuple[int, ...] = ()
        for size in self.inner:
            if int(np.prod(axes, dtype=int)) == self.block_rows:
                break
            axes = (*axes, size)
        return axes

    @property
    def _byte_axes(self) -> tuple[int, ...]:
        return self.inner[len(self._row_axes) :]


# inner axes: rows of the block, then bytes of its rows
SHUFFLES = {
    "e2m1_16x128": Shuffle(16, 64, (16, 4, 16), (1, 0, 2), 2),
    "e8m0_32x256": Shuffle(32, 8, (2, 16, 2, 4), (3, 1, 2, 0), 32),
}


FLYDSL_ARGUMENTS = {
    "w1": "e2m1_16x128",
    "w2": "e2m1_16x128",
    "w3": "e2m1_16x128",
    "s1": "e8m0_32x256",
    "s2": "e8m0_32x256",
    "s3": "e8m0_32x256",
}


def argument_layouts(kernel: KernelRecord) -> dict[str, str]:
    """Argument name -> layout of SHUFFLES that the kernel's binary reads it in; nothing for plain ones."""
    is_flydsl = "hsaco" in kernel.files and kernel.schedule.get("form") == "flydsl"
    return FLYDSL_ARGUMENTS if is_flydsl else {}  # its tile program, on a CPU, reads them as stored


def shuffled(name: str, plain: Array) -> Array:
    """Stacked matrices ``[.., N, bytes]`` in a layout of SHUFFLES."""
    shuffle = SHUFFLES[name]
    out = np.zeros(shuffle.shape(plain.shape), plain.dtype)
    for index in np.ndindex(plain.shape[:-2]):
        shuffle.write(plain[index], out[index])
    return out
