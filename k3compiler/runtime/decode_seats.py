"""What the device knows of the rows that decode, and the record that tells it the rest.

A row that decodes step after step keeps its seat (its row of the batch), so that the device advances
it by itself (``package/step_record.py``). The host keeps the little that it must compare:

    who        whose row it is (a number that no other sequence ever had), or -1
    context    tokens in the caches at the last launch
    slot       its KDA slot
    token      what it chose in that launch, once the host has read it

All of it is array work: one pass over the rows, and page tables only of those that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.package.step_record import FIRST_ROW_WORD, NUM_FIELDS, RowField
from k3compiler.runtime.step import SeqChunk, StepInputs

Ints = NDArray[np.int64]
Words = NDArray[np.int32]

FROM_DEVICE = -1
"""As the token to feed: what the row chose in the launch before, whatever that is."""
_UNREAD = -2


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """A decode step as columns.

    Shapes: all ``[n]``. ``who``, ``contexts``, ``slots`` i64; ``tokens`` i32, FROM_DEVICE only for
    rows of the launch before; the sampler's as in INPUT_SHAPES. ``page_tables(some)`` gives
    ``[len(some), P] i32`` of rows by index, 0 past a row's last page.
    """

    who: Ints
    tokens: Words
    contexts: Ints
    slots: Ints
    page_tables: Callable[[Ints], Words]
    temperature: NDArray[np.float32]
    top_k: Words
    top_p: NDArray[np.float32]
    seed: Words
    step_idx: Words

    @property
    def num_rows(self) -> int:
        return len(self.who)


class DecodeSeats:
    """The rows of the batch on the device, as the host knows them.

    Args:
        num_seats: rows of the largest launch.
        page_columns: ``P``.
    """

    def __init__(self, num_seats: int, page_tokens: int, page_columns: int) -> None:
        self._page_tokens, self._page_columns = page_tokens, page_columns
        self._who: Ints = np.full(num_seats, -1, np.int64)
        self._context: Ints = np.zeros(num_seats, np.int64)
        self._slot: Ints = np.zeros(num_seats, np.int64)
        self._token: Words = np.full(num_seats, _UNREAD, np.int32)

    def forget(self) -> None:
        """The device's rows are no longer what they were: set all anew."""
        self._who.fill(-1)

    def take(self, who: Ints) -> Ints:
        """A seat for every row, the one it has where it has one. Shapes: ``[n]``, a permutation."""
        count = len(who)
        held = self._who[:count]
        order = np.argsort(held, kind="stable")
        found = order[np.minimum(np.searchsorted(held, who, sorter=order), count - 1)]
        is_there = held[found] == who
        is_free = np.ones(count, np.bool_)
        is_free[found[is_there]] = False
        seats = np.where(is_there, found, 0)
        seats[~is_there] = np.flatnonzero(is_free)
        return seats

    def record(self, rows: DecodeRows, seats: Ints, num_rows: int) -> StepInputs:
        """The inputs of a launch of ``num_rows`` rows, after which the device's rows are these."""
        knows = (self._who[seats] == rows.who) & (self._slot[seats] == rows.slots)
        knows &= self._context[seats] + 1 == rows.contexts
        goes_on = knows & ((rows.tokens == FROM_DEVICE) | (rows.tokens == self._token[seats]))
        words = np.zeros(FIRST_ROW_WORD + num_rows, np.int32)
        words[0] = rows.num_rows
        turned = np.flatnonzero(goes_on & (rows.contexts % self._page_tokens == 0))
        if len(turned):
            columns = rows.contexts[turned] // self._page_tokens
            pages = rows.page_tables(turned)[np.arange(len(turned)), columns]
            words[FIRST_ROW_WORD + seats[turned]] = -pages
        anew, news = np.flatnonzero(~goes_on), np.zeros(0, np.int32)
        if len(anew):
            starts, news = self._set_anew(rows, anew, knows[anew])
            words[FIRST_ROW_WORD + seats[anew]] = len(words) + starts
        self._sit(rows, seats)
        symbols = dict.fromkeys(("T", "S", "R"), num_rows) | {"P": self._page_columns}
        arrays: dict[str, NDArray[Any]] = {"decode_record": np.concatenate([words, news])}
        positions = np.zeros(num_rows, np.int32)
        positions[seats] = rows.contexts
        return StepInputs(arrays, symbols, lambda: positions)

    def _set_anew(
        self, rows: DecodeRows, anew: Ints, has_pages: NDArray[np.bool_]
    ) -> tuple[Ints, Words]:
        """Where each row's words start, and the words: fields, then the pages that are not there."""
        contexts = rows.contexts[anew]
        column = contexts // self._page_tokens
        is_turned = contexts % self._page_tokens == 0
        first = np.where(has_pages, column, 0)
        count = np.where(has_pages, is_turned, column + 1)
        assert (rows.tokens[anew] != FROM_DEVICE).all(), "the device does not have these rows"
        fields = np.zeros((len(anew), NUM_FIELDS), np.int32)
        for field, values in (
            (RowField.TOKEN, rows.tokens[anew]),
            (RowField.CONTEXT, contexts),
            (RowField.SLOT, rows.slots[anew]),
            (RowField.STEP, rows.step_idx[anew]),
            (RowField.TEMPERATURE, rows.temperature[anew].view(np.int32)),
            (RowField.TOP_K, rows.top_k[anew]),
            (RowField.TOP_P, rows.top_p[anew].view(np.int32)),
            (RowField.SEED, rows.seed[anew]),
            (RowField.FIRST_PAGE, first),
            (RowField.NUM_PAGES, count),
        ):
            fields[:, field] = values
        tables = rows.page_tables(anew)
        at = np.arange(tables.shape[1])
        is_sent = (at >= first[:, None]) & (at < (first + count)[:, None])
        ends = np.cumsum(NUM_FIELDS + count)
        starts = ends - count - NUM_FIELDS
        news = np.zeros(int(ends[-1]), np.int32)
        is_field = np.zeros(len(news), np.bool_)
        is_field[starts[:, None] + np.arange(NUM_FIELDS)] = True
        news[is_field], news[~is_field] = fields.reshape(-1), tables[is_sent]
        return starts, news

    def _sit(self, rows: DecodeRows, seats: Ints) -> None:
        self._who.fill(-1)
        self._who[seats] = rows.who
        self._context[seats], self._slot[seats] = rows.contexts, rows.slots
        self._token.fill(_UNREAD)

    def chose(self, seats: Ints, tokens: Words) -> None:
        """What the last launch's rows chose; only while no other launch followed."""
        self._token[seats] = tokens


def columns_of(chunks: Sequence[SeqChunk], page_columns: int) -> DecodeRows:
    """Sequences of one token each as columns; nobody knows them (``who`` counts from 0)."""
    assert all(c.num_tokens == 1 and c.logits != "none" for c in chunks), "decode feeds one token"
    samplers = [c.sampler for c in chunks]
    tables = np.zeros((len(chunks), page_columns), np.int32)
    for row, chunk in zip(tables, chunks, strict=True):
        assert len(chunk.pages), f"{chunk} has no page"
        row[: len(chunk.pages)] = chunk.pages[:page_columns]
    return DecodeRows(
        np.arange(len(chunks)),
        np.array([c.tokens[0] for c in chunks], np.int32),
        np.array([c.context_tokens for c in chunks], np.int64),
        np.array([c.slot for c in chunks], np.int64),
        lambda some: tables[some],
        np.array([s.temperature for s in samplers], np.float32),
        np.array([s.top_k for s in samplers], np.int32),
        np.array([s.top_p for s in samplers], np.float32),
        np.array([s.seed for s in samplers], np.int32),
        np.array([s.step_idx for s in samplers], np.int32),
    )


def build_decode(
    chunks: Sequence[SeqChunk], *, page_columns: int, page_tokens: int, num_rows: int
) -> StepInputs:
    """Inputs of a decode step that sets every row anew, padded to ``num_rows`` rows."""
    assert len(chunks) <= num_rows, f"{len(chunks)} sequences do not fit {num_rows} rows"
    seats = DecodeSeats(num_rows, page_tokens, page_columns)
    rows = columns_of(chunks, page_columns)
    return seats.record(rows, seats.take(rows.who), num_rows)
