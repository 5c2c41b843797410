"""Initial state of a launch: the argument segment, and the scalar registers the kernel's descriptor asks for."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from k3compiler.check.emulator.code_object import KernelArg, KernelNote
from k3compiler.check.emulator.fields import Array, bit

Argument = Array | np.generic | int | float | None
Grid = tuple[int, int, int]
_POINTERS = ("global_buffer", "dynamic_shared_pointer")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The 64 bytes that the hardware reads of a kernel."""

    lds_bytes: int
    scratch_bytes: int
    entry: int
    resources2: int
    properties: int
    preload: int

    @staticmethod
    def of(data: bytes) -> Descriptor:
        lds, scratch = struct.unpack_from("<II", data, 0)
        (entry,) = struct.unpack_from("<q", data, 16)
        (resources2,) = struct.unpack_from("<I", data, 52)
        properties, preload = struct.unpack_from("<HH", data, 56)
        return Descriptor(lds, scratch, entry, resources2, properties, preload)

    @property
    def num_preloaded(self) -> int:
        """Words of the argument segment that arrive in registers."""
        return self.preload & 0x7F

    def user_registers(self, arguments: bytes, address: int) -> list[int]:
        """What the first scalar registers hold."""
        words: list[int] = []
        widths = (
            4,
            2,
            2,
            2,
            2,
            2,
            1,
        )  # private segment, dispatch, queue, arguments, id, scratch, its size
        for index, width in enumerate(widths):
            if not bit(self.properties, index):
                continue
            given = {3: [address & 0xFFFFFFFF, address >> 32], 6: [self.scratch_bytes]}
            words += given.get(index, [0] * width)
        first = self.preload >> 7
        for index in range(first, first + self.num_preloaded):
            words.append(int.from_bytes(arguments[4 * index : 4 * index + 4], "little"))
        count = self.resources2 >> 1 & 31
        return (words + [0] * count)[:count]

    def workgroup_registers(self, workgroup: Grid) -> list[int]:
        """The coordinates that follow them."""
        return [workgroup[i] for i in range(3) if bit(self.resources2, 7 + i)]


def argument_segment(
    note: KernelNote,
    arguments: Sequence[Argument],
    *,
    grid: Grid,
    block: Grid,
    place: Callable[[Array], int],
) -> bytes:
    """The argument segment's bytes; ``place`` puts an array into memory and says its address.

    Missing trailing pointers are null.

    Raises:
        ValueError: a scalar is missing.
    """
    segment = bytearray(max(note.argument_bytes, 8))
    given = iter(arguments)
    for argument in note.args:
        if argument.kind.startswith("hidden_"):
            value = _hidden(argument.kind.removeprefix("hidden_"), grid, block)
            data = None if value is None else value.to_bytes(argument.size, "little")
        else:
            data = _packed(argument, given, place)
        if data is not None:
            segment[argument.offset : argument.offset + argument.size] = data
    return bytes(segment)


def _hidden(kind: str, grid: Grid, block: Grid) -> int | None:
    for index, axis in enumerate("xyz"):
        known = {
            f"block_count_{axis}": grid[index],
            f"group_size_{axis}": block[index],
            f"remainder_{axis}": 0,
        }
        if kind in known:
            return known[kind]
    if kind == "grid_dims":
        return 3 if grid[2] > 1 else 2 if grid[1] > 1 else 1
    return None


def _packed(
    argument: KernelArg, given: Iterator[Argument], place: Callable[[Array], int]
) -> bytes | None:
    value = next(given, None)
    if argument.kind in _POINTERS:
        if value is None:
            return None
        return struct.pack("<Q", place(value) if isinstance(value, np.ndarray) else int(value))
    if argument.kind != "by_value":
        raise NotImplementedError(f"argument kind {argument.kind}")
    if value is None:
        raise ValueError("a by-value argument is missing")
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tobytes().ljust(argument.size, b"\0")[: argument.size]
    if isinstance(value, float):
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[argument.size], value)
    return (value % (1 << 8 * argument.size)).to_bytes(argument.size, "little")
