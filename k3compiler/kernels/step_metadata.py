"""The step's metadata in one launch: what all other kernels of a plan read about who is who.

Decode: the device keeps every row's inputs and advances them; the host sends news only (``package/step_record.py``).
Prefill: what is as long as the tokens, kda chunks or contexts is expanded here from one entry a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping

from k3compiler.dialects.tile.builder import Access, Buffer, Program
from k3compiler.dialects.tile.values import Tile, maximum, minimum, where
from k3compiler.package.step_record import FIRST_ROW_WORD, NUM_FIELDS, RowField


def decode_metadata(p: Program, *, page_tokens: int, block: int) -> None:
    """The inputs of a decode step from those of the last one and the record; one row a program.

    Shapes: record ``[REC]``; next_token, temperature, top_k, top_p, seed, step_idx, logit_rows ``[R]``; tokens,
    token_seq, token_pos ``[T]``; seq_ctx, seq_slot ``[S]``; page_table ``[S, P]``; T = S = R. i32, but temperature and
    top_p f32.
    """
    record = p.buffer("record", "i32", ("REC",))
    rows = _Rows(p, record)
    table = p.buffer("page_table", "i32", ("S", "P"), "rw")
    row = p.program_id(0)
    num_live, word = record.load((0,)), record.load((row + FIRST_ROW_WORD,))
    context, step = rows["seq_ctx"].load((row,)), rows["step_idx"].load((row,))
    chosen = rows["next_token"].load((row,))
    is_live = row < num_live
    rows["token_seq"].store((row,), row)
    rows["logit_rows"].store((row,), row)
    with p.when(is_live & (word <= 0)):
        rows.place(row, chosen, context + 1, step + 1)
        with p.when(word < 0):
            table.store((row, (context + 1) // page_tokens), 0 - word)
    with p.when(is_live & (word > 0)):
        rows.set_anew(row, word)
        first, count = rows.field(word, RowField.FIRST_PAGE), rows.field(word, RowField.NUM_PAGES)
        pages = word + NUM_FIELDS
        with p.loop(0, count, block) as (j, _):
            some = record.load((pages + j,), (block,), limits=(pages + count,))
            table.store((row, first + j), some, limits=(first + count,))
    with p.when(row >= num_live):
        rows.place(row, p.scalar_value(0), p.scalar_value(0), p.scalar_value(0))
        rows.clear(row)
        table.store((row, 0), p.scalar_value(0))
    p.grid("T")


class _Rows:
    """The step inputs that have one entry a row, by name."""

    def __init__(self, p: Program, record: Buffer) -> None:
        self._p, self._record = p, record
        reads: dict[str, Access] = {"next_token": "r", "seq_ctx": "rw", "step_idx": "rw"}
        letters = {
            "tokens": "T",
            "token_seq": "T",
            "token_pos": "T",
            "seq_ctx": "S",
            "seq_slot": "S",
        }
        floats = ("temperature", "top_p")
        names = (*letters, "next_token", "logit_rows", *floats, "top_k", "seed", "step_idx")
        self._buffers = {
            name: p.buffer(
                name,
                "f32" if name in floats else "i32",
                (letters.get(name, "R"),),
                reads.get(name, "w"),
            )
            for name in names
        }

    def __getitem__(self, name: str) -> Buffer:
        return self._buffers[name]

    def field(self, word: Tile, field: RowField) -> Tile:
        """A field of the row that is set anew from ``word`` on."""
        return self._record.load((word + int(field),))

    def place(self, row: Tile, token: Tile, context: Tile, step: Tile) -> None:
        """What changes in every step."""
        self["tokens"].store((row,), token)
        self["seq_ctx"].store((row,), context)
        self["token_pos"].store((row,), context)
        self["step_idx"].store((row,), step)

    def set_anew(self, row: Tile, word: Tile) -> None:
        """Everything but the pages, from the record."""
        fields = (RowField.TOKEN, RowField.CONTEXT, RowField.STEP)
        self.place(row, *(self.field(word, field) for field in fields))
        self["seq_slot"].store((row,), self.field(word, RowField.SLOT))
        self["top_k"].store((row,), self.field(word, RowField.TOP_K))
        self["seed"].store((row,), self.field(word, RowField.SEED))
        for name, field in (("temperature", RowField.TEMPERATURE), ("top_p", RowField.TOP_P)):
            self[name].store((row,), self.field(word, field).bitcast("f32"))

    def clear(self, row: Tile) -> None:
        """A padding row is greedy and owns slot 0."""
        for name in ("seq_slot", "top_k", "seed"):
            self[name].store((row,), self._p.scalar_value(0))
        self["temperature"].store((row,), self._p.constant(0.0, "f32"))
        self["top_p"].store((row,), self._p.constant(1.0, "f32"))


_GIVEN = {
    "seq_start": ("S+1",),
    "seq_ctx": ("S",),
    "page_start": ("S+1",),
    "pages": ("PG",),
    "seq_chunk": ("S+1",),
    "chunk_grid": ("S",),
    "kept_chunk": ("CK",),
    "kept_slot": ("CK",),
    "seq_seg": ("S+1",),
    "segment_grid": ("S",),
}
_EXPANDED = {
    "token_seq": ("T",),
    "token_pos": ("T",),
    "page_table": ("S", "P"),
    "chunk_start": ("NC",),
    "chunk_end": ("NC",),
    "chunk_seq": ("NC",),
    "chunk_ckpt": ("NC",),
    "seg_chunk": ("NS+1",),
    "seg_seq": ("NS",),
}


def prefill_metadata(p: Program, *, block: int) -> None:
    """What is as long as the tokens, the kda chunks or the page table, from one entry a sequence.

    Shapes: seq_start, page_start, seq_chunk, seq_seg ``[S+1]``; seq_ctx, chunk_grid, segment_grid ``[S]``; pages
    ``[PG]``; kept_chunk, kept_slot ``[CK]``; token_seq, token_pos ``[T]``; page_table ``[S, P]``, 0 past a sequence's
    last page; chunk_start, chunk_end, chunk_seq, chunk_ckpt ``[NC]``; seg_chunk ``[NS+1]``; seg_seq ``[NS]``. i32. A
    program writes ``block`` entries of each.
    """
    buffers = {name: p.buffer(name, "i32", shape) for name, shape in _GIVEN.items()}
    buffers |= {name: p.buffer(name, "i32", shape, "w") for name, shape in _EXPANDED.items()}
    at = p.program_id(0) * block
    _expand_tokens(p, buffers, at, block)
    _expand_pages(p, buffers, block)
    _expand_chunks(p, buffers, at, block)
    _expand_segments(p, buffers, at, block)
    p.grid(f"max(cdiv(T + 1, {block}), S*cdiv(P, {block}))")  # NS <= NC <= T


def _entries(b: Mapping[str, Buffer], s: Tile, *names: str) -> tuple[Tile, ...]:
    """A sequence's entries of some arrays."""
    return tuple(b[name].load((s,)) for name in names)


def _expand_tokens(p: Program, b: Mapping[str, Buffer], at: Tile, block: int) -> None:
    token = p.arange(block) + at
    none = p.full((block,), 0, "i32")
    with p.loop(0, p.symbol("S"), carry=[none, none]) as (s, (seq, pos)):
        start, context = _entries(b, s, "seq_start", "seq_ctx")
        is_mine = token >= start
        p.yield_(where(is_mine, s, seq), where(is_mine, token - start + context, pos))
    seq, pos = p.results()
    b["token_seq"].store((at,), seq)
    b["token_pos"].store((at,), pos)


def _expand_pages(p: Program, b: Mapping[str, Buffer], block: int) -> None:
    program, num_blocks = p.program_id(0), (p.symbol("P") + (block - 1)) // block
    owner, column = program // num_blocks, program % num_blocks * block
    with p.when(owner < p.symbol("S")):
        first, end = (b["page_start"].load((owner + i,)) for i in range(2))
        pages = b["pages"].load((first + column,), (block,), limits=(end,))
        b["page_table"].store((owner, column), pages)


def _expand_chunks(p: Program, b: Mapping[str, Buffer], at: Tile, block: int) -> None:
    """A chunk's rows: between two cuts of the absolute grid, or the sequence's ends."""
    with p.when(at < p.symbol("NC")):
        chunk, none = p.arange(block) + at, p.full((block,), 0, "i32")
        with p.loop(0, p.symbol("S"), carry=[none] * 3) as (s, (begin, end, seq)):
            names = ("seq_start", "seq_ctx", "chunk_grid", "seq_chunk")
            row, context, grid, first = _entries(b, s, *names)
            past = b["seq_start"].load((s + 1,))
            is_mine = chunk >= first
            cut = (chunk - first + context // grid) * grid + (row - context)
            p.yield_(
                where(is_mine, maximum(cut, row), begin),
                where(is_mine, minimum(cut + grid, past), end),
                where(is_mine, s, seq),
            )
        for name, values in zip(("start", "end", "seq"), p.results(), strict=True):
            b[f"chunk_{name}"].store((at,), values)
        with p.loop(0, p.symbol("CK"), carry=[p.full((block,), -1, "i32")]) as (k, (kept,)):
            which, slot = _entries(b, k, "kept_chunk", "kept_slot")
            p.yield_(where(chunk.eq(which), slot, kept))
        b["chunk_ckpt"].store((at,), p.results()[0])


def _expand_segments(p: Program, b: Mapping[str, Buffer], at: Tile, block: int) -> None:
    """A segment's first chunk, counted along its sequence; one entry more: the number of chunks."""
    with p.when(at < p.symbol("NS") + 1):
        segment, none = p.arange(block) + at, p.full((block,), 0, "i32")
        with p.loop(0, p.symbol("S"), carry=[none, none]) as (s, (chunk, seq)):
            context, grid, wide = _entries(b, s, "seq_ctx", "chunk_grid", "segment_grid")
            first, first_chunk = _entries(b, s, "seq_seg", "seq_chunk")
            is_mine = segment >= first
            before = (segment - first + context // wide) * (wide // grid) - context // grid
            found = maximum(before, 0) + first_chunk
            p.yield_(where(is_mine, found, chunk), where(is_mine, s, seq))
        chunk, seq = p.results()
        is_end = segment.eq(p.symbol("NS"))
        b["seg_chunk"].store((at,), where(is_end, p.symbol("NC"), chunk))
        b["seg_seq"].store((at,), seq)
