"""A linker for our own objects: ELF relocatables in, one shared object out, the same bytes everywhere.

It knows what LLVM emits for self-contained position-independent code: read-only sections, and relocations
relative to the place or to the global offset table. Nothing is imported and nothing is relocated at load.
Layout of the result: headers, dynamic symbols, constants and code (read and execute), then the dynamic section
(read and write).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from k3compiler.errors import K3Error

PAGE = 4096
_SHF_ALLOC, _SHF_EXECINSTR = 2, 4
_SHT_RELA = 4
_RELOCATIONS = {
    1: "64",
    2: "PC32",
    4: "PLT32",
    24: "PC64",
    25: "GOTOFF64",
    26: "GOTPC32",
    29: "GOTPC64",
}


@dataclass(slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    data: bytearray
    align: int
    link: int
    info: int
    address: int = 0


@dataclass(slots=True)
class _Symbol:
    name: str
    section: int
    value: int
    size: int
    is_function: bool


@dataclass(slots=True)
class _Object:
    sections: list[_Section]
    symbols: list[_Symbol]
    kept: set[int] = field(default_factory=set)


def link(objects: Mapping[str, bytes], exports: Sequence[str], *, code_section: str) -> bytes:
    """One shared object that exports ``exports``; ``objects`` are named for messages and linked by name.

    Only ``code_section`` and what it refers to is kept: the wrappers that the engine adds are dropped.

    Raises:
        K3Error: K3-T022 where a symbol is missing, defined twice, or an object needs something outside.
    """
    parsed = {name: _parse(objects[name]) for name in sorted(objects)}
    for name, item in parsed.items():
        _keep(item, code_section, name)
    layout = _Layout(sorted(exports))
    layout.place(list(parsed.values()))
    table = _defined(parsed, code_section)
    missing = [e for e in exports if e not in table]
    if missing:
        raise _fault("exports", "a definition of each", f"no {', '.join(missing)}")
    for name, item in parsed.items():
        _relocate(item, table, name)
    return layout.write(list(parsed.values()), table)


def _fault(where: str, expected: str, found: str) -> K3Error:
    return K3Error("K3-T022", where=f"linking {where}", expected=expected, found=found)


# -- reading -------------------------------------------------------------------------------------
def _parse(data: bytes) -> _Object:
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", data, 16) != (1, 62):
        raise _fault("object", "a 64-bit x86-64 relocatable object", repr(data[:20]))
    start = struct.unpack_from("<Q", data, 40)[0]
    size, count, names = struct.unpack_from("<HHH", data, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    strings = heads[names][4]
    sections = [
        _Section(_text(data, strings + h[0]), h[1], h[2],
                 bytearray(h[5]) if h[1] == 8 else bytearray(data[h[4] : h[4] + h[5]]), h[8], h[6], h[7])
        for h in heads
    ]  # fmt: skip
    table = next(i for i, s in enumerate(sections) if s.kind == 2)
    names_of = bytes(sections[sections[table].link].data)
    symbols: list[_Symbol] = []
    for name, info, _, section, value, extent in struct.iter_unpack(
        "<IBBHQQ", sections[table].data
    ):
        symbols.append(_Symbol(_text(names_of, name), section, value, extent, info & 15 == 2))
    return _Object(sections, symbols)


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _relocations(item: _Object, section: int) -> list[tuple[int, int, int, int]]:
    """(offset, type, symbol index, addend) of one section."""
    found: list[tuple[int, int, int, int]] = []
    for s in item.sections:
        if s.kind == _SHT_RELA and s.info == section:
            for offset, info, addend in struct.iter_unpack("<QQq", s.data):
                found.append((offset, info & 0xFFFFFFFF, info >> 32, addend))
    return found


def _keep(item: _Object, code_section: str, name: str) -> None:
    """Marks the code and, transitively, the sections that it refers to."""
    todo = [i for i, s in enumerate(item.sections) if s.name == code_section]
    while todo:
        section = todo.pop()
        if section in item.kept:
            continue
        if item.sections[section].flags & 1:
            raise _fault(name, "read-only sections", item.sections[section].name)
        item.kept.add(section)
        for _, _, symbol, _ in _relocations(item, section):
            home = item.symbols[symbol].section
            if 0 < home < 0xFF00:
                todo.append(home)


def _defined(parsed: Mapping[str, _Object], code_section: str) -> dict[str, _Symbol]:
    """Functions of the kept code, with ``value`` turned into an address."""
    table: dict[str, _Symbol] = {}
    for name, item in parsed.items():
        for symbol in item.symbols:
            if not symbol.is_function or symbol.section not in item.kept:
                continue
            section = item.sections[symbol.section]
            if section.name != code_section:
                continue
            if symbol.name in table:
                raise _fault(name, "each symbol once", f"{symbol.name} again")
            address = section.address + symbol.value
            table[symbol.name] = _Symbol(symbol.name, symbol.section, address, symbol.size, True)
    return table


# -- placing -------------------------------------------------------------------------------------
def _aligned(value: int, align: int) -> int:
    return -(-value // align) * align


class _Layout:
    """Addresses of everything, file offsets being the same."""

    def __init__(self, exports: list[str]) -> None:
        self.exports = exports
        self.strings = b"\0" + b"".join(e.encode() + b"\0" for e in exports)
        self.symbols_at = _aligned(64 + 56 * 4, 8)
        self.hash_at = self.symbols_at + 24 * (len(exports) + 1)
        self.strings_at = self.hash_at + 4 * (2 + 1 + len(exports) + 1)
        self.end = self.strings_at + len(self.strings)

    def place(self, objects: list[_Object]) -> None:
        """Constants first, then code, in the order of the objects."""
        for is_code in (False, True):
            for item in objects:
                for index in sorted(item.kept):
                    section = item.sections[index]
                    if bool(section.flags & _SHF_EXECINSTR) == is_code:
                        section.address = _aligned(self.end, max(section.align, 16))
                        self.end = section.address + len(section.data)
        self.dynamic_at = _aligned(self.end, PAGE)

    def write(self, objects: list[_Object], table: Mapping[str, _Symbol]) -> bytes:
        dynamic = self._dynamic()
        image = bytearray(self.dynamic_at + len(dynamic))
        image[:64] = struct.pack(
            "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 0, 0, 0
        )
        image[64 : 64 + 56 * 4] = self._segments(len(dynamic))
        image[self.symbols_at : self.hash_at] = self._symbols(table)
        image[self.hash_at : self.strings_at] = self._hash()
        image[self.strings_at : self.strings_at + len(self.strings)] = self.strings
        for item in objects:
            for index in item.kept:
                section = item.sections[index]
                image[section.address : section.address + len(section.data)] = section.data
        image[self.dynamic_at :] = dynamic
        return bytes(image)

    def _segments(self, dynamic_bytes: int) -> bytes:
        def segment(kind: int, flags: int, at: int, size: int, align: int) -> bytes:
            return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)

        return b"".join(
            [
                segment(1, 5, 0, self.end, PAGE),
                segment(1, 6, self.dynamic_at, dynamic_bytes, PAGE),
                segment(2, 6, self.dynamic_at, dynamic_bytes, 8),
                segment(0x6474E551, 6, 0, 0, 16),
            ]
        )

    def _dynamic(self) -> bytes:
        entries = [
            (4, self.hash_at), (5, self.strings_at), (6, self.symbols_at), (10, len(self.strings)), (11, 24), (0, 0),
        ]  # fmt: skip
        return b"".join(struct.pack("<qQ", tag, value) for tag, value in entries)

    def _symbols(self, table: Mapping[str, _Symbol]) -> bytes:
        entries, name = [bytes(24)], 1
        for export in self.exports:
            symbol = table[export]
            # global function in an absolute-looking section: any defined index will do
            entries.append(struct.pack("<IBBHQQ", name, 0x12, 0, 1, symbol.value, symbol.size))
            name += len(export.encode()) + 1
        return b"".join(entries)

    def _hash(self) -> bytes:
        """The System V table with one bucket: a chain through every symbol."""
        count = len(self.exports) + 1
        chain = [0, *[i + 1 if i + 1 < count else 0 for i in range(1, count)]]
        return struct.pack(f"<{3 + count}I", 1, count, 1 if count > 1 else 0, *chain)


# -- relocating ----------------------------------------------------------------------------------
def _relocate(item: _Object, table: Mapping[str, _Symbol], name: str) -> None:
    """Fills in addresses; the offset table's base is address 0 of the library."""
    for index in item.kept:
        section = item.sections[index]
        for offset, kind, number, addend in _relocations(item, index):
            symbol = item.symbols[number]
            place = section.address + offset
            how = _RELOCATIONS.get(kind)
            target = (
                0 if symbol.name == "_GLOBAL_OFFSET_TABLE_" else _address(item, symbol, table, name)
            )
            match how:
                case "PC32" | "PLT32" | "GOTPC32":
                    section.data[offset : offset + 4] = struct.pack("<i", target + addend - place)
                case "PC64" | "GOTPC64":
                    section.data[offset : offset + 8] = struct.pack("<q", target + addend - place)
                case "GOTOFF64":
                    section.data[offset : offset + 8] = struct.pack("<q", target + addend)
                case _:
                    raise _fault(
                        name, "position-independent references", f"relocation {how or kind}"
                    )


def _address(item: _Object, symbol: _Symbol, table: Mapping[str, _Symbol], name: str) -> int:
    if symbol.section in item.kept:
        return item.sections[symbol.section].address + symbol.value
    if symbol.name in table:
        return table[symbol.name].value
    raise _fault(name, "no reference outside the library", f"undefined symbol {symbol.name!r}")
