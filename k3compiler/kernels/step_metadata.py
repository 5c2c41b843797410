"""The step's metadata in one launch: what all other kernels of a plan read about who is who.

Decode: the device keeps every row's inputs and advances them; the host sends news only (``package/step_record.py``).
Prefill: what is as long as the tokens or the contexts is expanded here from one entry a sequence.
"""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Access, Buffer, Program
from k3compiler.dialects.tile.values import Tile, where
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


def prefill_metadata(p: Program, *, block: int) -> None:
    """token_seq and token_pos from the sequences' first rows and contexts, the page table from the pages in a row.

    Shapes: seq_start, page_start ``[S+1]``; seq_ctx ``[S]``; pages ``[PG]``; token_seq, token_pos ``[T]``; page_table
    ``[S, P]``, 0 past a sequence's last page. i32. A program writes ``block`` tokens and ``block`` columns of a table.
    """
    seq_start = p.buffer("seq_start", "i32", ("S+1",))
    seq_ctx = p.buffer("seq_ctx", "i32", ("S",))
    page_start = p.buffer("page_start", "i32", ("S+1",))
    pages = p.buffer("pages", "i32", ("PG",))
    token_seq = p.buffer("token_seq", "i32", ("T",), "w")
    token_pos = p.buffer("token_pos", "i32", ("T",), "w")
    table = p.buffer("page_table", "i32", ("S", "P"), "w")
    program, lane = p.program_id(0), p.arange(block)

    token = lane + program * block
    none = p.full((block,), 0, "i32")
    with p.loop(0, p.symbol("S"), carry=[none, none]) as (s, (seq, pos)):
        start = seq_start.load((s,))
        is_mine = token >= start
        at = token - start + seq_ctx.load((s,))
        p.yield_(where(is_mine, s, seq), where(is_mine, at, pos))
    seq, pos = p.results()
    token_seq.store((program * block,), seq)
    token_pos.store((program * block,), pos)

    num_blocks = (p.symbol("P") + (block - 1)) // block
    owner, column = program // num_blocks, program % num_blocks * block
    with p.when(owner < p.symbol("S")):
        first, end = page_start.load((owner,)), page_start.load((owner + 1,))
        table.store((owner, column), pages.load((first + column,), (block,), limits=(end,)))
    p.grid(f"max(cdiv(T, {block}), S*cdiv(P, {block}))")
