"""Step inputs: every table against a plain restatement, and the absolute kda grid."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3compiler.check.step_arrays import chunk_lists
from k3compiler.package.expr import cdiv, evaluate
from k3compiler.package.step_inputs import INPUT_SHAPES
from k3compiler.runtime.step import SeqChunk, StepInputs, build_prefill, input_bytes

PAGE, CHUNK, COLUMNS = 16, 64, 40


def _chunk(index: int, context: int, count: int, logits: str = "last") -> SeqChunk:
    pages = [1 + 50 * index + i for i in range(cdiv(context + count, PAGE))]
    assert logits in ("none", "last", "all")
    return SeqChunk([100 * index + i for i in range(count)], context, index + 1, pages, logits)


def _prefill(chunks: list[SeqChunk], segment_chunks: int | None = None) -> StepInputs:
    return build_prefill(
        chunks,
        page_columns=COLUMNS,
        page_tokens=PAGE,
        chunk_tokens=CHUNK,
        segment_chunks=segment_chunks,
    )


def _with_lists(step: StepInputs) -> dict[str, Any]:
    """The step's arrays and what the device makes of them."""
    return {**step.arrays, **chunk_lists(step.arrays)}


CHUNKS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 300), st.sampled_from(["none", "last", "all"])),
    min_size=1,
    max_size=4,
).map(lambda rows: [_chunk(i, c, n, w) for i, (c, n, w) in enumerate(rows)])


@given(CHUNKS, st.sampled_from([None, 1, 2, 3]))
@settings(max_examples=60, deadline=None)
def test_tables_say_what_they_should(chunks: list[SeqChunk], segment_chunks: int | None) -> None:
    step = _prefill(chunks, segment_chunks)
    a = step.arrays
    for name, array in a.items():
        dtype, shape = INPUT_SHAPES[name]
        assert array.shape == tuple(evaluate(e, step.symbols) for e in shape), name
        assert array.nbytes == input_bytes(name, step.symbols), name
        assert array.dtype == {"i32": np.int32, "f32": np.float32}[dtype], name
    row = 0
    logit_rows: list[int] = []
    for s, chunk in enumerate(chunks):
        begin, end = a["seq_start"][s : s + 2]
        assert (begin, end) == (row, row + chunk.num_tokens)
        assert a["tokens"][begin:end].tolist() == list(chunk.tokens)
        span = range(chunk.context_tokens, chunk.end_tokens)
        assert step.positions()[begin:end].tolist() == list(span)
        assert a["seq_ctx"][s] == chunk.context_tokens
        assert a["seq_slot"][s] == chunk.slot
        first, past = a["page_start"][s : s + 2]
        assert a["pages"][first:past].tolist() == chunk.pages
        low, high = a["kv_start"][s : s + 2]
        assert high - low == chunk.end_tokens
        logit_rows += {"none": [], "last": [end - 1], "all": list(range(begin, end))}[chunk.logits]
        row = end
    assert a["logit_rows"].tolist() == logit_rows


@given(CHUNKS, st.sampled_from([None, 1, 2, 3]))
@settings(max_examples=60, deadline=None)
def test_chunks_and_segments_tile_every_sequence(
    chunks: list[SeqChunk], segment_chunks: int | None
) -> None:
    step = _prefill(chunks, segment_chunks)
    a, token_pos = _with_lists(step), step.positions()
    assert step.symbols["NC"] == len(a["chunk_seq"]) and step.symbols["NS"] == len(a["seg_seq"])
    assert a["chunk_start"].tolist() == [0, *a["chunk_end"][:-1].tolist()]
    assert (a["chunk_end"] > a["chunk_start"]).all()
    for begin, end, s in zip(a["chunk_start"], a["chunk_end"], a["chunk_seq"], strict=True):
        positions = token_pos[begin:end]
        assert a["seq_start"][s] <= begin < end <= a["seq_start"][s + 1]
        assert positions[0] // CHUNK == positions[-1] // CHUNK, "a chunk crosses the grid"
        starts_late = positions[0] % CHUNK and positions[0] != chunks[s].context_tokens
        ends_early = (positions[-1] + 1) % CHUNK and positions[-1] + 1 != chunks[s].end_tokens
        assert not starts_late and not ends_early, "a cut off the grid inside a sequence"
    assert a["seg_chunk"][0] == 0 and a["seg_chunk"][-1] == len(a["chunk_seq"])
    for index, (first, end) in enumerate(pairwise(a["seg_chunk"].tolist())):
        assert set(a["chunk_seq"][first:end]) == {a["seg_seq"][index]}
        if segment_chunks is not None:
            assert 0 < end - first <= segment_chunks
    for s, (first, end) in enumerate(pairwise(a["seq_seg"].tolist())):
        assert set(a["seg_seq"][first:end]) == {s}
        if segment_chunks is None:
            assert end - first == 1
    assert set(a["chunk_ckpt"]) <= {-1}


def test_grid_is_absolute() -> None:
    a = _with_lists(_prefill([_chunk(0, 40, 100)]))
    assert a["chunk_start"].tolist() == [0, 24, 88]
    assert a["chunk_end"].tolist() == [24, 88, 100]


def test_segments_are_absolute_too() -> None:
    """The state at a segment's end is the same whether the prompt came in one piece or two."""
    whole = _with_lists(_prefill([_chunk(0, 0, 300)], 2))
    rest = _with_lists(_prefill([_chunk(0, 64, 236)], 2))
    ends = [whole["chunk_end"][c - 1] for c in whole["seg_chunk"][1:]]
    assert ends == [128, 256, 300]
    assert [64 + rest["chunk_end"][c - 1] for c in rest["seg_chunk"][1:]] == ends


def test_checkpoints_cut_neither_chunks_nor_segments() -> None:
    chunk = SeqChunk(range(200), 0, 1, list(range(1, 14)), checkpoints={64: 5, 128: 6, 200: 7})
    a = _with_lists(_prefill([chunk]))
    assert a["chunk_ckpt"].tolist() == [5, 6, -1, 7]
    plain = _with_lists(_prefill([SeqChunk(range(200), 0, 1, list(range(1, 14)))]))
    for name in set(a) - {"chunk_ckpt", "kept_chunk", "kept_slot"}:
        assert np.array_equal(a[name], plain[name]), name
    with pytest.raises(AssertionError, match="checkpoint at 65"):
        _prefill([SeqChunk(range(200), 0, 1, list(range(1, 14)), checkpoints={65: 5})])


def test_too_few_pages_is_caught() -> None:
    with pytest.raises(AssertionError, match="too few pages"):
        _prefill([SeqChunk(range(17), 0, 1, [1])])


def test_a_verify_cuts_chunks_at_every_position() -> None:
    kept = {63: 4, 64: 5, 65: 6}
    chunk = SeqChunk(range(4), 62, 1, [1] * 5, "all", kept, is_verify=True)
    a = _with_lists(_prefill([chunk]))
    assert (a["chunk_start"].tolist(), a["chunk_end"].tolist()) == ([0, 1, 2, 3], [1, 2, 3, 4])
    assert (a["seg_chunk"].tolist(), a["chunk_ckpt"].tolist()) == ([0, 4], [4, 5, 6, -1])
    assert a["step_idx"].tolist() == [0, 1, 2, 3], "a draft is verified with decoding's numbers"
