"""The step's metadata: which tokens, positions, pages, chunks and segments a plan works on.

The host gives small numpy arrays (i32 unless said) under the names of docs/package.md; what is as
long as the tokens, the kda chunks or the page table is expanded on the device. Decode steps:
``decode_seats.py``. A kda chunk is cut on the *absolute* grid of its sequence, so the same chunks
come out however the prompt is fed:

    context 40, 100 new tokens, grid 64  ->  rows [0, 24) [24, 88) [88, 100)
    (absolute positions                      [40, 64) [64, 128) [128, 140))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from k3compiler.dtypes import itemsize, numpy_dtype
from k3compiler.package.expr import cdiv, evaluate
from k3compiler.package.step_inputs import INPUT_SHAPES

Ints = NDArray[np.int32]
NO_CHUNK = -1  # the last entry of ``kept_chunk``, so that it is never empty
ONE_SEGMENT = 1 << 30  # a segment grid that no sequence reaches


def input_bytes(name: str, symbols: Mapping[str, int]) -> int:
    """Bytes of one input array."""
    dtype, shape = INPUT_SHAPES[name]
    return prod(evaluate(extent, symbols) for extent in shape) * itemsize(dtype)


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """What the sampling kernel needs for one row of logits. ``temperature`` 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    step_idx: int = 0


@dataclass(frozen=True, slots=True)
class SeqChunk:
    """One sequence's part of a step.

    Attributes:
        tokens: new token ids, at least one.
        context_tokens: tokens that the caches already hold.
        slot: KDA slot. pages: MLA pages, enough for context and new tokens.
        logits: rows that need logits.
        checkpoints: absolute position (a multiple of the kda chunk inside this step, past its
            start) -> slot that receives the state after that many tokens.
        is_verify: checkpoints may lie anywhere, and cut kda chunks (drafts are verified so).
        sampler: of the first row of logits; each row after it is one step on.
    """

    tokens: Sequence[int] | Ints
    context_tokens: int
    slot: int
    pages: Sequence[int]
    logits: Literal["none", "last", "all"] = "last"
    checkpoints: Mapping[int, int] = field(default_factory=dict[int, int])
    sampler: SamplerRow = SamplerRow()
    is_verify: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_logits(self) -> int:
        """Rows that need logits."""
        return {"none": 0, "last": 1, "all": self.num_tokens}[self.logits]

    @property
    def end_tokens(self) -> int:
        """Tokens in the caches after the step."""
        return self.context_tokens + len(self.tokens)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the host gives for a step, and the values of its symbols.

    The plan's first launch makes the other step inputs of it (``kernels/step_metadata.py``).
    ``positions()``: the absolute position of every token row, for those who look on.
    """

    arrays: dict[str, NDArray[Any]]
    symbols: dict[str, int]
    positions: Callable[[], Ints]


def build_prefill(
    chunks: Sequence[SeqChunk],
    *,
    page_columns: int,
    page_tokens: int,
    chunk_tokens: int,
    segment_chunks: int | None = None,
) -> StepInputs:
    """Inputs of the prefill plan.

    Args:
        chunks: the sequences, each with at least one token.
        page_columns: ``P``.
        segment_chunks: kda chunks per segment; None makes one segment per sequence. Segments
            begin at absolute multiples too, so they do not depend on the prefill chunks before.
    """
    arrays: dict[str, NDArray[Any]] = {**_sequence_arrays(chunks, page_columns, page_tokens)}
    arrays |= _chunk_arrays(chunks, chunk_tokens, segment_chunks)
    arrays |= _logit_arrays(chunks)
    spans = [(c.context_tokens, c.end_tokens) for c in chunks]

    def positions() -> Ints:
        return np.concatenate([np.arange(a, b, dtype=np.int32) for a, b in spans])

    return StepInputs(arrays, _symbols(arrays, page_columns), positions)


def _symbols(arrays: Mapping[str, NDArray[Any]], page_columns: int) -> dict[str, int]:
    sizes = {"T": "tokens", "S": "seq_ctx", "PG": "pages", "CK": "kept_chunk", "R": "logit_rows"}
    ends = {"NC": "seq_chunk", "NS": "seq_seg", "KV": "kv_start"}
    found = {symbol: len(arrays[name]) for symbol, name in sizes.items()}
    found |= {symbol: int(arrays[name][-1]) for symbol, name in ends.items()}
    return found | {"P": page_columns}


def _sequence_arrays(
    chunks: Sequence[SeqChunk], page_columns: int, page_tokens: int
) -> dict[str, Ints]:
    counts = np.array([c.num_tokens for c in chunks], np.int64)
    assert len(chunks) and counts.min() > 0, "a step feeds at least one token per sequence"
    contexts = np.array([c.context_tokens for c in chunks], np.int64)
    used = [cdiv(c.end_tokens, page_tokens) for c in chunks]
    for chunk, num_pages in zip(chunks, used, strict=True):
        assert num_pages <= min(len(chunk.pages), page_columns), f"{chunk} has too few pages"
    pages = [np.asarray(c.pages[:n], np.int32) for c, n in zip(chunks, used, strict=True)]
    return {
        "tokens": np.concatenate([np.asarray(c.tokens, np.int32) for c in chunks]),
        "seq_start": _starts(counts),
        "seq_ctx": contexts.astype(np.int32),
        "seq_slot": np.array([c.slot for c in chunks], np.int32),
        "page_start": _starts(np.array(used, np.int64)),
        "pages": np.concatenate(pages),
        "kv_start": _starts(contexts + counts),
    }


def _chunk_arrays(
    chunks: Sequence[SeqChunk], chunk_tokens: int, segment_chunks: int | None
) -> dict[str, Ints]:
    """Where each sequence's kda chunks and segments begin, and which chunks' states are kept."""
    contexts = np.array([c.context_tokens for c in chunks], np.int64)
    ends = np.array([c.end_tokens for c in chunks], np.int64)
    cut = np.array([_chunk_grid(c, chunk_tokens) for c in chunks], np.int64)
    segment = ONE_SEGMENT if segment_chunks is None else chunk_tokens * segment_chunks
    first = contexts // cut
    seq_chunk = _starts((ends - 1) // cut - first + 1)
    kept = [(s, position) for s, chunk in enumerate(chunks) for position in chunk.checkpoints]
    who, position = np.array([*kept, (0, 0)], np.int64).T
    slots = [slot for chunk in chunks for slot in chunk.checkpoints.values()]
    kept_chunk = seq_chunk[who] + (position - 1) // cut[who] - first[who]
    kept_chunk[-1] = NO_CHUNK
    arrays = {
        "chunk_grid": cut,
        "segment_grid": np.full(len(chunks), segment),
        "seq_chunk": seq_chunk,
        "seq_seg": _starts((ends - 1) // segment - contexts // segment + 1),
        "kept_chunk": kept_chunk,
        "kept_slot": np.array([*slots, NO_CHUNK]),
    }
    return {name: values.astype(np.int32) for name, values in arrays.items()}


def _chunk_grid(chunk: SeqChunk, chunk_tokens: int) -> int:
    """Tokens between cuts: the kda chunk, or one where a verify keeps states off its grid."""
    first, last = chunk.context_tokens, chunk.end_tokens
    off = [p for p in chunk.checkpoints if p % chunk_tokens and p != last]
    for position in chunk.checkpoints:
        may_be = position not in off or chunk.is_verify
        assert first < position <= last and may_be, f"checkpoint at {position} in {first}..{last}"
    return 1 if off else chunk_tokens


def _logit_arrays(chunks: Sequence[SeqChunk]) -> dict[str, NDArray[Any]]:
    """The rows that need logits; the sampler counts on along a sequence's rows."""
    ends = np.cumsum([c.num_tokens for c in chunks])
    wanted = np.array([c.num_logits for c in chunks])
    each = np.repeat(np.arange(len(chunks)), wanted)
    nth = np.arange(len(each)) - np.repeat(np.cumsum(wanted) - wanted, wanted)
    columns: dict[str, NDArray[Any]] = {
        "logit_rows": ((ends - wanted)[each] + nth).astype(np.int32)
    }
    for name in ("temperature", "top_k", "top_p", "seed", "step_idx"):
        values = [getattr(c.sampler, name) for c in chunks]
        columns[name] = np.array(values, numpy_dtype(INPUT_SHAPES[name][0]))[each]
    columns["step_idx"] += nth.astype(np.int32)
    return columns


def _starts(counts: NDArray[np.int64]) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)
