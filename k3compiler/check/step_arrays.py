"""All arrays of a step, as they must lie on the device: what the metadata kernels are to make of the host's part.

Plain restatements; the kernels' cases and the meanings of the ops read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from k3compiler.check.case import Array
from k3compiler.dtypes import numpy_dtype
from k3compiler.package.step_inputs import INPUT_SHAPES
from k3compiler.runtime.step import SamplerRow, SeqChunk, build_prefill


def prefill_arrays(
    chunks: Sequence[SeqChunk],
    *,
    page_columns: int,
    page_tokens: int,
    chunk_tokens: int,
    segment_chunks: int | None = None,
) -> dict[str, Array]:
    """Every step input of a prefill step by name; arguments as of :func:`build_prefill`."""
    step = build_prefill(
        chunks,
        page_columns=page_columns,
        page_tokens=page_tokens,
        chunk_tokens=chunk_tokens,
        segment_chunks=segment_chunks,
    )
    seq = np.repeat(np.arange(len(chunks)), [c.num_tokens for c in chunks])
    spans = [np.arange(c.context_tokens, c.end_tokens) for c in chunks]
    ends = [c.end_tokens for c in chunks]
    return {
        **step.arrays,
        **chunk_lists(step.arrays),
        "token_seq": seq.astype(np.int32),
        "token_pos": np.concatenate(spans).astype(np.int32),
        "page_table": _page_table([c.pages for c in chunks], ends, page_columns, page_tokens),
    }


def chunk_lists(given: Mapping[str, Array]) -> dict[str, Array]:
    """The kda chunks and segments of a step, one after the other, from the host's part of its inputs."""
    starts: list[int] = []
    ends: list[int] = []
    owner: list[int] = []
    seg_chunk, seg_seq = list[int](), list[int]()
    for s, (row, stop) in enumerate(pairwise(given["seq_start"].tolist())):
        context = int(given["seq_ctx"][s])
        past = context + stop - row
        stops = _cuts(context, past, int(given["segment_grid"][s]))[:-1]
        for begin, end in pairwise(_cuts(context, past, int(given["chunk_grid"][s]))):
            if begin in stops:
                seg_chunk.append(len(owner))
                seg_seq.append(s)
            starts.append(row + begin - context)
            ends.append(row + end - context)
            owner.append(s)
    kept = np.full(len(owner), -1, np.int32)
    kept[given["kept_chunk"][:-1]] = given["kept_slot"][:-1]
    lists = {
        "chunk_start": starts,
        "chunk_end": ends,
        "chunk_seq": owner,
        "seg_chunk": [*seg_chunk, len(owner)],
        "seg_seq": seg_seq,
    }
    arrays = {name: np.array(values, np.int32) for name, values in lists.items()}
    return arrays | {"chunk_ckpt": kept}


def _cuts(first: int, last: int, grid: int) -> list[int]:
    """``first``, the multiples of ``grid`` strictly between, ``last``."""
    return [first, *range((first // grid + 1) * grid, last, grid), last]


def decode_arrays(
    chunks: Sequence[SeqChunk], *, page_columns: int, page_tokens: int, num_rows: int
) -> dict[str, Array]:
    """Every step input of a decode step by name; padding rows own page 0 and slot 0 and are greedy."""
    rows = [*chunks, *[SeqChunk([0], 0, 0, [0])] * (num_rows - len(chunks))]
    each = np.arange(num_rows, dtype=np.int32)
    context = np.array([c.context_tokens for c in rows], np.int32)
    ends = [c.end_tokens for c in rows]
    return {
        "tokens": np.array([c.tokens[0] for c in rows], np.int32),
        "token_seq": each,
        "token_pos": context,
        "seq_start": np.arange(num_rows + 1, dtype=np.int32),
        "seq_ctx": context,
        "seq_slot": np.array([c.slot for c in rows], np.int32),
        "page_table": _page_table([c.pages for c in rows], ends, page_columns, page_tokens),
        "logit_rows": each,
        **_sampler_columns([c.sampler for c in rows]),
    }


def _page_table(
    pages: Sequence[Sequence[int]], ends: Sequence[int], columns: int, page_tokens: int
) -> Array:
    """``[S, columns]`` i32: the pages that hold a sequence's tokens up to its end, then zeros."""
    table = np.zeros((len(pages), columns), np.int32)
    for row, own, end in zip(table, pages, ends, strict=True):
        used = -(-end // page_tokens)
        row[:used] = own[:used]
    return table


def _sampler_columns(samplers: Sequence[SamplerRow]) -> dict[str, Array]:
    names = ("temperature", "top_k", "top_p", "seed", "step_idx")
    return {
        name: np.array([getattr(s, name) for s in samplers], numpy_dtype(INPUT_SHAPES[name][0]))
        for name in names
    }
