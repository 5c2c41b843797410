"""Step metadata: rows that go on, take a page, are set anew, pad; and a prefill step's tables."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from k3compiler.check.case import Array, Case, Params, poisoned
from k3compiler.check.step_arrays import chunk_lists
from k3compiler.package.step_record import FIRST_ROW_WORD, NUM_FIELDS, RowField

_FLOATS = ("temperature", "top_p")
_KEPT = ("seq_slot", "top_k", "seed", *_FLOATS)


def decode_metadata(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """``S`` rows in one of the four ways by turns, the last quarter padding; ``P`` columns."""
    rows, columns, page = sizes.get("S", 11), sizes.get("P", 150), params["page_tokens"]
    num_live = max(1, rows - rows // 4)
    before = _rows_before(rng, rows, columns, page)
    after = {name: array.copy() for name, array in before.items()}
    record = poisoned((1 + rows * (1 + NUM_FIELDS + columns),), "i32")
    record[0], end = num_live, FIRST_ROW_WORD + rows
    for row in range(rows):
        word = 0
        if row < num_live and row % 3 == 0:
            word, end = end, _set_anew(record, end, rng, after, row, page)
        elif row < num_live:
            word = _go_on(rng, after, row, page) if row % 3 == 1 else _go_on(None, after, row, page)
        else:
            _pad(after, row)
        record[FIRST_ROW_WORD + row] = word
    after["token_pos"] = after["seq_ctx"].copy()
    after["token_seq"] = after["logit_rows"] = np.arange(rows, dtype=np.int32)
    expected = {n: a for n, a in after.items() if n != "next_token"}
    return Case({**before, "record": record}, expected, 0.0)


def _rows_before(rng: np.random.Generator, rows: int, columns: int, page: int) -> dict[str, Array]:
    """What the device holds; what every step writes anew is poison."""
    integers = {
        name: rng.integers(0, 1000, rows).astype(np.int32)
        for name in ("next_token", "seq_slot", "top_k", "seed", "step_idx")
    }
    written = {
        n: poisoned((rows,), "i32") for n in ("tokens", "token_seq", "token_pos", "logit_rows")
    }
    floats = {n: rng.random(rows).astype(np.float32) for n in _FLOATS}
    context = rng.integers(0, columns * page - 1, rows).astype(np.int32)
    table = rng.integers(1, 999, (rows, columns)).astype(np.int32)
    return integers | written | floats | {"seq_ctx": context, "page_table": table}


def _go_on(rng: np.random.Generator | None, after: dict[str, Array], row: int, page: int) -> int:
    """One token further, with a new page where ``rng`` draws one; -> the row's word."""
    after["seq_ctx"][row] += 1
    after["step_idx"][row] += 1
    after["tokens"][row] = after["next_token"][row]
    if rng is None:
        return 0
    found = int(rng.integers(1, 999))
    after["page_table"][row, after["seq_ctx"][row] // page] = found
    return -found


def _set_anew(
    record: Array,
    at: int,
    rng: np.random.Generator,
    after: dict[str, Array],
    row: int,
    page: int,
) -> int:
    """Write a row's fields and pages to the record; -> the word behind them."""
    columns = after["page_table"].shape[1]
    context = int(rng.integers(0, columns * page))
    last = context // page + 1
    first = int(rng.integers(0, last + 1)) if row % 2 else 0
    pages = rng.integers(1, 999, last - first)
    fields = rng.integers(0, 1000, NUM_FIELDS).astype(np.int32)
    for field, value in (
        (RowField.CONTEXT, context),
        (RowField.FIRST_PAGE, first),
        (RowField.NUM_PAGES, len(pages)),
    ):
        fields[field] = value
    heat = rng.random(2).astype(np.float32)
    fields[[RowField.TEMPERATURE, RowField.TOP_P]] = heat.view(np.int32)
    record[at : at + NUM_FIELDS] = fields
    record[at + NUM_FIELDS : at + NUM_FIELDS + len(pages)] = pages
    after["temperature"][row], after["top_p"][row] = heat
    for name, field in (
        ("tokens", RowField.TOKEN),
        ("seq_ctx", RowField.CONTEXT),
        ("seq_slot", RowField.SLOT),
        ("step_idx", RowField.STEP),
        ("top_k", RowField.TOP_K),
        ("seed", RowField.SEED),
    ):
        after[name][row] = fields[field]
    after["page_table"][row, first:last] = pages
    return at + NUM_FIELDS + len(pages)


def _pad(after: dict[str, Array], row: int) -> None:
    for name in ("tokens", "seq_ctx", "step_idx", *_KEPT):
        after[name][row] = 1 if name == "top_p" else 0
    after["page_table"][row, 0] = 0


def prefill_metadata(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """``T`` tokens in ``S`` sequences, contexts from none to most of ``P`` pages of 16 tokens."""
    tokens, count, columns = sizes.get("T", 777), sizes.get("S", 5), sizes.get("P", 130)
    cuts = np.sort(rng.choice(np.arange(1, tokens), count - 1, replace=False))
    start = np.concatenate([[0], cuts, [tokens]]).astype(np.int32)
    context = rng.integers(0, 16 * columns, count).astype(np.int32)
    context[0] = 0
    used = rng.integers(1, columns + 1, count)
    page_start = np.concatenate([[0], np.cumsum(used)]).astype(np.int32)
    pages = rng.integers(1, 9999, page_start[-1]).astype(np.int32)
    table = np.zeros((count, columns), np.int32)
    for row, (a, b) in enumerate(pairwise(page_start)):
        table[row, : b - a] = pages[a:b]
    seq = np.repeat(np.arange(count), np.diff(start)).astype(np.int32)
    position = np.arange(tokens) - start[seq] + context[seq]
    arguments: dict[str, Any] = {
        "seq_start": start,
        "seq_ctx": context,
        "page_start": page_start,
        "pages": pages,
        **_chunks_given(start, context, rng),
    }
    expected = {"token_seq": seq, "token_pos": position.astype(np.int32), "page_table": table}
    expected |= chunk_lists(arguments)
    arguments |= {name: poisoned(want.shape, "i32") for name, want in expected.items()}
    return Case(arguments, expected, 0.0)


def _chunks_given(start: Array, context: Array, rng: np.random.Generator) -> dict[str, Array]:
    """Kda chunks of 16 tokens (of one in the last sequence) in segments of 48; every third state is kept."""
    grid = np.full(len(context), 16, np.int32)
    grid[-1] = 1
    ends, segment = context + np.diff(start), np.full(len(context), 48, np.int32)
    counts = [(ends - 1) // cut - context // cut + 1 for cut in (grid, segment)]
    seq_chunk, seq_seg = (np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in counts)
    kept = np.arange(0, seq_chunk[-1], 3)
    return {
        "chunk_grid": grid,
        "segment_grid": segment,
        "seq_chunk": seq_chunk,
        "seq_seg": seq_seg,
        "kept_chunk": np.append(kept, -1).astype(np.int32),
        "kept_slot": np.append(rng.permutation(len(kept)), -1).astype(np.int32),
    }
