"""Where everything lies in the one buffer of the caches.

    0            | slots_at                                  | arena_at                        num_bytes |
    | trash page | trash slot | slots of drafts' states .. | slot 0, slot 1, ..   gap   .., page 1, page 0 |

A slot is the recurrent and conv states of every KDA layer, a page the cells of every MLA layer, each
layer's part at a fixed offset. Kernels count slots in rows from ``slots_at`` and pages in rows from 0;
row 0 of either is nobody's (padding rows of a step own it). All offsets are Python integers: 64 bits
and more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, lcm, prod

from k3compiler.dtypes import itemsize
from k3compiler.package.expr import cdiv
from k3compiler.package.pitches import PITCHES, pitch_of
from k3compiler.runtime.state import PAGES_STATE, StateRecord

ALIGNMENT = 64
"""Of every layer's part and of every item, in bytes."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """One slot and one page in bytes, and where each layer's part lies in them.

    Attributes:
        slot_bytes, page_bytes: padded so that every part's rows divide them.
        token_bytes: of a page, its padding included.
        cell_bytes: one token in one MLA layer. num_mla_layers: 0 where the model has none.
        offsets: by state name, bytes from the start of its item.
        pitches: by symbol, rows from one item to the next (package/pitches.py).
    """

    slot_bytes: int
    page_bytes: int
    token_bytes: int
    cell_bytes: int
    num_mla_layers: int
    offsets: dict[str, int]
    pitches: dict[str, int]

    @classmethod
    def of(cls, records: Mapping[str, StateRecord], page_tokens: int) -> CacheLayout:
        """Lay out the states of a package."""
        pages = {n: r for n, r in records.items() if n.startswith(PAGES_STATE)}
        slots = {n: r for n, r in records.items() if n not in pages}
        page_offsets, page_bytes, cell_bytes = _lay_out_page(pages, page_tokens)
        slot_offsets, slot_bytes = _lay_out_slot(slots)
        pitches = dict.fromkeys(PITCHES.values(), 0)
        for item_bytes, own in ((slot_bytes, slots), (page_bytes, pages)):
            for name, record in own.items():
                pitches[pitch_of(name)] = item_bytes // _row_bytes(record)
        return cls(
            slot_bytes,
            page_bytes,
            page_bytes // page_tokens,
            cell_bytes,
            len(pages),
            slot_offsets | page_offsets,
            pitches,
        )


def _lay_out_slot(records: Mapping[str, StateRecord]) -> tuple[dict[str, int], int]:
    """Offsets of the parts, and the bytes of a slot."""
    offsets: dict[str, int] = {}
    end, step = 0, ALIGNMENT
    for name, record in records.items():
        rows, row_bytes = record.shape[1], _row_bytes(record)
        assert isinstance(rows, int), f"{name}: inner extents are static, found {rows}"
        step = lcm(step, row_bytes)
        offsets[name] = end
        end += _round_up(rows * row_bytes, ALIGNMENT)
    return offsets, _round_up(max(end, 1), step)


def _lay_out_page(
    records: Mapping[str, StateRecord], page_tokens: int
) -> tuple[dict[str, int], int, int]:
    """Offsets of the parts, all of one size, and the bytes of a page and of a cell."""
    cells = {_row_bytes(record) for record in records.values()}
    if not cells:
        return {}, ALIGNMENT * page_tokens, 0
    assert len(cells) == 1, f"MLA layers with cells of {sorted(cells)} bytes"
    cell_bytes = cells.pop()
    part_bytes = _round_up(page_tokens, ALIGNMENT // gcd(ALIGNMENT, cell_bytes)) * cell_bytes
    page_bytes = len(records) * part_bytes
    assert page_bytes % page_tokens == 0, f"pages of {page_tokens} tokens: a power of two is wanted"
    return {n: i * part_bytes for i, n in enumerate(records)}, page_bytes, cell_bytes


def _row_bytes(record: StateRecord) -> int:
    return prod(int(n) for n in record.shape[2:]) * itemsize(record.dtype)


def _round_up(count: int, step: int) -> int:
    return cdiv(count, step) * step


@dataclass(frozen=True, slots=True)
class CacheMap:
    """The buffer for an arena of ``arena_bytes`` (a multiple of ALIGNMENT).

    ``num_scratch`` slots lie outside of the arena: the states that a verify of drafts leaves behind.
    """

    layout: CacheLayout
    arena_bytes: int
    num_scratch: int = 0

    def __post_init__(self) -> None:
        assert self.arena_bytes % ALIGNMENT == 0, f"an arena of {self.arena_bytes} bytes"

    @property
    def num_bytes(self) -> int:
        """Of the whole buffer: whole pages, so that pages end where it does."""
        before = self.layout.page_bytes + self.first_slot_row * self.layout.slot_bytes
        return _round_up(before + self.arena_bytes, self.layout.page_bytes)

    @property
    def arena_at(self) -> int:
        return self.num_bytes - self.arena_bytes

    @property
    def slots_at(self) -> int:
        return self.arena_at - self.first_slot_row * self.layout.slot_bytes

    @property
    def first_slot_row(self) -> int:
        """The row of the slot at place 0."""
        return 1 + self.num_scratch

    @property
    def num_slot_rows(self) -> int:
        return self.first_slot_row + self.arena_bytes // self.layout.slot_bytes

    @property
    def num_page_rows(self) -> int:
        """The page at place p is row ``num_page_rows - 1 - p``."""
        return self.num_bytes // self.layout.page_bytes

    @property
    def symbols(self) -> dict[str, int]:
        """What plans call extents and pitches."""
        rows = {"PAGES": self.num_page_rows, "SLOTS": self.num_slot_rows}
        return rows | self.layout.pitches

    def state_at(self, name: str) -> int:
        """Byte offset of a state's part of row 0."""
        first = 0 if name.startswith(PAGES_STATE) else self.slots_at
        return first + self.layout.offsets[name]
