"""Rows that come, go on, turn a page, change and leave: the device's arrays are what they must be.

The host's record and the kernel that reads it run together, step after step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from k3compiler.check.step_arrays import decode_arrays
from k3compiler.ir.tile_interpreter import run_tile_program
from k3compiler.kernels.base import build_program
from k3compiler.package.expr import evaluate
from k3compiler.package.step_inputs import INPUT_SHAPES
from k3compiler.package.step_record import RECORD_WORDS
from k3compiler.runtime.decode_seats import FROM_DEVICE, DecodeRows, DecodeSeats, build_decode
from k3compiler.runtime.step import SamplerRow, SeqChunk

PAGE, COLUMNS, SEATS = 8, 6, 5
NAMES = (
    "tokens", "token_seq", "token_pos", "seq_ctx", "seq_slot", "page_table", "logit_rows",
    "temperature", "top_k", "top_p", "seed", "step_idx",
)  # fmt: skip


class Device:
    """Runs the metadata kernel on arrays that stay, full of noise at first."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._program = build_program(
            "decode_metadata", {"page_tokens": PAGE, "block": 4}, symbol="k"
        )
        sizes = {"T": SEATS, "S": SEATS, "R": SEATS, "P": COLUMNS}
        self.arrays: dict[str, NDArray[Any]] = {"next_token": np.zeros(SEATS, np.int32)}
        for name in NAMES:
            dtype, shape = INPUT_SHAPES[name]
            noise = rng.integers(100, 200, [evaluate(e, sizes) for e in shape])
            self.arrays[name] = noise.astype(np.float32 if dtype == "f32" else np.int32)

    def launch(self, record: NDArray[Any], num_rows: int) -> dict[str, NDArray[Any]]:
        room = evaluate(RECORD_WORDS, {"T": num_rows, "P": COLUMNS})
        whole = np.full(room, 0x7F7F7F7F, np.int32)
        whole[: len(record)] = record
        some = {name: array[:num_rows] for name, array in self.arrays.items()}
        run_tile_program(self._program, {**some, "record": whole}, (num_rows, 1, 1))
        return {name: some[name].copy() for name in NAMES}


@dataclass
class Row:
    """A sequence as a test keeps it."""

    who: int
    slot: int
    pages: list[int]
    context: int
    sampler: SamplerRow
    token: int = 5
    step: int = 3
    history: list[int] = field(default_factory=list[int])

    def chunk(self) -> SeqChunk:
        s = self.sampler
        sampler = SamplerRow(s.temperature, s.top_k, s.top_p, s.seed, self.step)
        return SeqChunk([self.token], self.context, self.slot, self.pages, sampler=sampler)


def _columns(rows: list[Row], *, ahead: bool) -> DecodeRows:
    tables = np.zeros((len(rows), COLUMNS), np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.pages)] = row.pages
    tokens = [FROM_DEVICE if ahead else row.token for row in rows]
    return DecodeRows(
        np.array([row.who for row in rows]),
        np.array(tokens, np.int32),
        np.array([row.context for row in rows]),
        np.array([row.slot for row in rows]),
        lambda some: tables[some],
        np.array([row.sampler.temperature for row in rows], np.float32),
        np.array([row.sampler.top_k for row in rows], np.int32),
        np.array([row.sampler.top_p for row in rows], np.float32),
        np.array([row.sampler.seed for row in rows], np.int32),
        np.array([row.step for row in rows], np.int32),
    )


@pytest.mark.parametrize("seed", range(3))
def test_rows_come_go_on_and_leave(seed: int) -> None:
    rng = np.random.default_rng(seed)
    device, seats = Device(rng), DecodeSeats(SEATS, PAGE, COLUMNS)
    rows, came, lengths = list[Row](), 0, list[int]()
    for _ in range(60):
        alone = bool(rows) and rng.random() < 0.5
        if not alone:
            rows = [r for r in rows if r.context < PAGE * COLUMNS - 2 and rng.random() > 0.2]
            while not rows or (len(rows) < SEATS and rng.random() < 0.4):
                pages = rng.integers(1, 99, COLUMNS).tolist()
                sampler = SamplerRow(rng.random(), 1, rng.random(), 7 + came, 0)
                rows.append(Row(came, came % 9, pages, int(rng.integers(0, 20)), sampler))
                came += 1
            rng.shuffle(rows)  # type: ignore[arg-type]
        num_rows = int(rng.integers(len(rows), SEATS + 1))
        taken = seats.take(np.array([r.who for r in rows]))
        is_ahead = alone and bool(rng.random() < 0.5)
        if any(r.context >= PAGE * COLUMNS for r in rows):
            rows = []
            continue
        step = seats.record(_columns(rows, ahead=is_ahead), taken, num_rows)
        found = device.launch(step.arrays["decode_record"], num_rows)
        lengths.append(len(step.arrays["decode_record"]) - 1 - num_rows)
        by_seat = [rows[i].chunk() for i in np.argsort(taken)]
        want = decode_arrays(by_seat, page_columns=COLUMNS, page_tokens=PAGE, num_rows=num_rows)
        _compare(found, want, [c.context_tokens for c in by_seat])
        chosen = rng.integers(0, 50, SEATS).astype(np.int32)
        device.arrays["next_token"][:] = chosen
        if rng.random() < 0.8:
            seats.chose(taken, chosen[taken])
        for row, seat in zip(rows, taken, strict=True):
            row.token, row.context, row.step = int(chosen[seat]), row.context + 1, row.step + 1
    assert lengths.count(0) > 5, "rows went on without a word"


def _compare(
    found: dict[str, NDArray[Any]], want: dict[str, NDArray[Any]], contexts: list[int]
) -> None:
    for name in NAMES:
        if name != "page_table":
            np.testing.assert_array_equal(found[name], want[name], err_msg=name)
    for row, context in enumerate(contexts):
        used = context // PAGE + 1
        np.testing.assert_array_equal(
            found["page_table"][row, :used], want["page_table"][row, :used]
        )
    assert not found["page_table"][len(contexts) :, 0].any(), "padding reads page 0"


def test_a_lone_step_says_all() -> None:
    chunks = [
        SeqChunk([7], 17, 3, [4, 5, 6], sampler=SamplerRow(0.5, 9, 0.25, 11, 2)),
        SeqChunk([8], 0, 1, [2]),
    ]
    sizes = {"page_columns": COLUMNS, "page_tokens": PAGE}
    step = build_decode(chunks, **sizes, num_rows=4)
    assert step.symbols == {"T": 4, "S": 4, "R": 4, "P": COLUMNS}
    assert step.positions().tolist() == [17, 0, 0, 0]
    found = Device(np.random.default_rng(1)).launch(step.arrays["decode_record"], 4)
    _compare(found, decode_arrays(chunks, **sizes, num_rows=4), [17, 0])


def test_the_device_is_asked_only_for_what_it_has() -> None:
    seats = DecodeSeats(SEATS, PAGE, COLUMNS)
    row = Row(1, 1, [1], 4, SamplerRow())
    with pytest.raises(AssertionError, match="does not have these rows"):
        seats.record(_columns([row], ahead=True), seats.take(np.array([1])), 1)
