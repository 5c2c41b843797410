"""Layouts that a package wants its packed weights in, by name (``weights.json``, docs/package.md).

``e2m1_16x128``: packed e2m1 ``[.., N, K/2]`` in blocks of 16 rows by 128 of K:
``[N/16][K/128][group of 32][row 16][16 B]``.
A wave's lane reads the 16 bytes of its row and group: one load of 1 KB, straight to registers.

``e8m0_32x256``: their scales ``[.., N, K/32]`` in blocks of 32 rows by 256 of K: ``[N/32][K/256][group][row 16][4]``;
byte ``2 * (which 128 of the 256) + (which 16 rows of the 32)``. A lane's word scales four products.

N is filled up to 32 rows and K to 256, with zeros.

``e2m1_planes``: packed e2m1 as 16-bit words ``[K/128][N][32]``. Word j of a row holds columns j, 32+j, 64+j and 96+j of
its 128: sign, exponent and mantissa in bits 15 8 7 6, 12 5 4 3, 9 2 1 0 and 14 13 11 10, so that a shift and a mask
make each a bf16 (times 2^-126). ``e8m0_planes``: their scales, ``[K/128][N][4]``, each exponent plus 96 (at most 254;
255 stays): the bf16 with these exponent bits, times such a value, is the weight times 2^-30.
K is filled up to 128, with zeros.

Source of the first two: the layouts of AMD's public MXFP4 kernels.
"""

from __future__ import annotations

from collections.abc import Callable
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


PLANE_DEPTH = 128  # elements of K whose words lie side by side
PLANE_UNIT = 30  # products of planes are in units of 2^-30
_PLANE_BITS = ((15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 13, 11, 10))


@dataclass(frozen=True, slots=True)
class Planes:
    """Rows whose every 128 of K, ``step_bytes`` as stored, lie together: ``[K/128][N][step]``."""

    step_bytes: int
    encode: Callable[[Array], Array]

    def shape(self, plain: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that holds the bytes of ``plain`` (rows and bytes of a row last)."""
        *outer, rows, width = plain
        return (*outer, rows, -(-width // self.step_bytes) * self.step_bytes)

    def write(self, plain: Array, out: Array) -> None:
        """Puts one matrix ``[N, bytes]`` into its layout ``out`` (of ``shape``); needs a few copies of the matrix."""
        padded = np.zeros(out.shape, out.dtype)
        padded[:, : plain.shape[1]] = plain
        steps = padded.reshape(len(padded), -1, self.step_bytes)
        out[...] = self.encode(steps).transpose(1, 0, 2).reshape(out.shape)


def _as_words(packed: Array) -> Array:
    """Packed e2m1 ``[N, steps, 64]`` as words of four planes, of the same bytes."""
    columns = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:2], 4, 32)
    words = np.zeros((*packed.shape[:2], 32), np.uint16)
    for plane, bits in enumerate(_PLANE_BITS):
        values = columns[:, :, plane].astype(np.uint16)
        for at, bit in zip(bits, (3, 2, 1, 0), strict=True):
            words |= (values >> bit & 1) << at
    return words.view(np.uint8)


def _as_exponents(scale: Array) -> Array:
    shifted = np.minimum(scale.astype(np.uint16) + 96, 254)
    return np.where(scale == 255, 255, shifted).astype(np.uint8)


# inner axes: rows of the block, then bytes of its rows
SHUFFLES: dict[str, Shuffle | Planes] = {
    "e2m1_16x128": Shuffle(16, 64, (16, 4, 16), (1, 0, 2), 2),
    "e8m0_32x256": Shuffle(32, 8, (2, 16, 2, 4), (3, 1, 2, 0), 32),
    "e2m1_planes": Planes(64, _as_words),
    "e8m0_planes": Planes(4, _as_exponents),
}


# (binary of a kernel, form of its schedule) -> layouts of packed weights and of their scales
FORM_LAYOUTS = {
    ("hsaco", "flydsl"): ("e2m1_16x128", "e8m0_32x256"),
    ("cubin", "planes"): ("e2m1_planes", "e8m0_planes"),
}


def argument_layouts(kernel: KernelRecord) -> dict[str, str]:
    """Argument name -> layout of SHUFFLES that the kernel's binary reads it in; nothing for plain ones."""
    form = kernel.schedule.get("form")
    for (binary, name), (weights, scales) in FORM_LAYOUTS.items():
        if binary in kernel.files and name == form:
            layouts = {"w": weights, "s": scales}
            return {f"{kind}{i}": layouts[kind] for kind in layouts for i in (1, 2, 3)}
    return {}  # a form's tile program, on a CPU, reads them as stored


def shuffled(name: str, plain: Array) -> Array:
    """Stacked matrices ``[.., N, bytes]`` in a layout of SHUFFLES."""
    shuffle = SHUFFLES[name]
    out = np.zeros(shuffle.shape(plain.shape), plain.dtype)
    for index in np.ndindex(plain.shape[:-2]):
        shuffle.write(plain[index], out[index])
    return out
