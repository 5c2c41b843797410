"""Reads an AMD code object: segments, symbols, relocations, and the metadata note of its kernels."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_LENGTHS = {
    0xC4: 1,
    0xC5: 2,
    0xC6: 4,
    0xD9: 1,
    0xDA: 2,
    0xDB: 4,
    0xDC: 2,
    0xDD: 4,
    0xDE: 2,
    0xDF: 4,
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_PT_LOAD, _SHT_SYMTAB, _SHT_RELA, _SHT_NOTE, _SHT_DYNSYM = 1, 2, 4, 7, 11
_NT_AMDGPU_METADATA, _R_AMDGPU_RELATIVE64 = 32, 13


def unpack_msgpack(data: bytes) -> Any:
    """The value that a MessagePack text starts with."""
    return _value(data, 0)[0]


def _value(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag < 0xC0:
        return _sized("map" if tag < 0x90 else "list" if tag < 0xA0 else "text", tag, data, at)
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag in _NUMBERS:
        end = at + struct.calcsize(_NUMBERS[tag])
        return struct.unpack(_NUMBERS[tag], data[at:end])[0], end
    width = _LENGTHS[tag]
    count = int.from_bytes(data[at : at + width], "big")
    kind = "bytes" if tag < 0xC7 else "text" if tag < 0xDC else "list" if tag < 0xDE else "map"
    return _body(kind, count, data, at + width)


def _sized(kind: str, tag: int, data: bytes, at: int) -> tuple[Any, int]:
    return _body(kind, tag & (31 if kind == "text" else 15), data, at)


def _body(kind: str, count: int, data: bytes, at: int) -> tuple[Any, int]:
    if kind in ("text", "bytes"):
        raw = data[at : at + count]
        return (raw.decode("utf-8", "replace") if kind == "text" else raw), at + count
    items: list[Any] = []
    for _ in range(count * (2 if kind == "map" else 1)):
        item, at = _value(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if kind == "map" else items), at


@dataclass(frozen=True, slots=True)
class KernelArg:
    """One entry of a kernel's argument segment; ``kind`` as the note says it (``by_value``...)."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class KernelNote:
    """What the metadata note says about one kernel. Sizes in bytes."""

    name: str
    symbol: str
    args: tuple[KernelArg, ...]
    argument_bytes: int
    lds_bytes: int
    scratch_bytes: int
    vgprs: int
    vgpr_spills: int
    wave_size: int
    max_workgroup: int

    @staticmethod
    def of(raw: Mapping[str, Any]) -> KernelNote:
        args = tuple(
            KernelArg(a[".offset"], a[".size"], a[".value_kind"]) for a in raw.get(".args", [])
        )
        return KernelNote(
            name=raw[".name"],
            symbol=raw[".symbol"],
            args=args,
            argument_bytes=raw[".kernarg_segment_size"],
            lds_bytes=raw[".group_segment_fixed_size"],
            scratch_bytes=raw[".private_segment_fixed_size"],
            vgprs=raw[".vgpr_count"],
            vgpr_spills=raw.get(".vgpr_spill_count", 0),
            wave_size=raw[".wavefront_size"],
            max_workgroup=raw[".max_flat_workgroup_size"],
        )


class CodeObject:
    """A code object in memory.

    Raises:
        ValueError: the bytes are no ELF file.
    """

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"\x7fELF":
            raise ValueError("not an ELF file")
        self.data = data
        self.machine_flag = struct.unpack_from("<I", data, 48)[0] & 0xFF
        segments, sections = struct.unpack_from("<QQ", data, 32)
        (num_segments,) = struct.unpack_from("<H", data, 56)
        (num_sections,) = struct.unpack_from("<H", data, 60)
        self._segments = [
            struct.unpack_from("<IIQQQQQQ", data, segments + 56 * i) for i in range(num_segments)
        ]
        self._sections = [
            struct.unpack_from("<IIQQQQIIQQ", data, sections + 64 * i) for i in range(num_sections)
        ]
        self.symbols = dict(self._read_symbols())
        notes = [desc for kind, desc in self._read_notes() if kind == _NT_AMDGPU_METADATA]
        metadata: dict[str, Any] = unpack_msgpack(notes[-1]) if notes else {}
        found = [KernelNote.of(k) for k in metadata.get("amdhsa.kernels", [])]
        self.kernels = {k.name: k for k in found}

    @property
    def image_bytes(self) -> int:
        """Bytes of the loaded image."""
        return max((s[3] + s[6] for s in self._segments if s[0] == _PT_LOAD), default=0)

    def loaded(self) -> Iterator[tuple[int, bytes]]:
        """(address in the image, bytes) of what is loaded from the file."""
        for kind, _, offset, address, _, size, _, _ in self._segments:
            if kind == _PT_LOAD:
                yield address, self.data[offset : offset + size]

    def relocations(self) -> Iterator[tuple[int, int]]:
        """(address of an 8-byte pointer, what it points to), both in the image."""
        for section in self._sections:
            if section[1] != _SHT_RELA:
                continue
            for at in range(section[4], section[4] + section[5], 24):
                place, info, addend = struct.unpack_from("<QQq", self.data, at)
                if info & 0xFFFFFFFF != _R_AMDGPU_RELATIVE64:
                    raise NotImplementedError(f"relocation type {info & 0xFFFFFFFF}")
                yield place, addend

    def _read_symbols(self) -> Iterator[tuple[str, int]]:
        for section in self._sections:
            if section[1] not in (_SHT_SYMTAB, _SHT_DYNSYM):
                continue
            names = self._sections[section[6]][4]
            for at in range(section[4], section[4] + section[5], 24):
                name_at, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", self.data, at)
                start = names + name_at
                name = self.data[start : self.data.index(b"\0", start)].decode()
                if name:
                    yield name, value

    def _read_notes(self) -> Iterator[tuple[int, bytes]]:
        for section in self._sections:
            at, end = section[4], section[4] + section[5]
            while section[1] == _SHT_NOTE and at < end:
                name_size, size, kind = struct.unpack_from("<III", self.data, at)
                start = at + 12 + (name_size + 3 & ~3)
                yield kind, self.data[start : start + size]
                at = start + (size + 3 & ~3)
