"""A ragged batch over shuffled pages for the MLA cases; what no token owns holds NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from k3compiler.check.case import MEMORY, Array
from k3compiler.check.cases.gemm import normal
from k3compiler.check.step_arrays import decode_arrays, prefill_arrays
from k3compiler.package.expr import cdiv
from k3compiler.runtime.step import SeqChunk

CHUNK_TOKENS = 64


def _counts(rng: np.random.Generator, total: int, parts: int) -> list[int]:
    """``parts`` unequal positive counts that sum to ``total``."""
    cuts = np.sort(rng.choice(np.arange(1, total), parts - 1, replace=False))
    return np.diff(np.concatenate([[0], cuts, [total]])).tolist()


def _sequences(
    contexts: list[int], counts: list[int], page_tokens: int, rng: Any
) -> tuple[list[SeqChunk], int]:
    """Sequences over shuffled pages, and how many pages there are (page 0 and a spare one belong to nobody)."""
    needed = [cdiv(c + n, page_tokens) for c, n in zip(contexts, counts, strict=True)]
    pages = (1 + rng.permutation(sum(needed) + 1)).tolist()
    chunks = []
    for context, count, used in zip(contexts, counts, needed, strict=True):
        own, pages = pages[:used], pages[used:]
        chunks.append(SeqChunk([0] * count, context, 1, own))
    return chunks, sum(needed) + 2


def prefill_batch(
    rng: np.random.Generator, sizes: dict[str, int], page_tokens: int
) -> tuple[dict[str, Array], int]:
    """Step inputs of ``T`` new tokens in ``S`` sequences, the first without context; and the pages.

    ``KV`` in ``sizes`` fixes the context of the last sequence (the others keep none).
    """
    tokens = sizes.get("T", 3 * page_tokens // 2)
    parts = min(sizes.get("S", 3), tokens)
    counts = _counts(rng, tokens, parts)
    if "KV" in sizes:
        contexts = [0] * (parts - 1) + [sizes["KV"] - tokens]
    else:
        contexts = [0, *rng.integers(1, 3 * page_tokens, parts - 1).tolist()]
    chunks, pages = _sequences(contexts, counts, page_tokens, rng)
    columns = max(cdiv(c.end_tokens, page_tokens) for c in chunks) + 1
    arrays = prefill_arrays(
        chunks, page_columns=columns, page_tokens=page_tokens, chunk_tokens=CHUNK_TOKENS
    )
    return arrays, pages


def decode_batch(
    rng: np.random.Generator, sizes: dict[str, int], page_tokens: int
) -> tuple[dict[str, Array], int]:
    """Step inputs of one token in each of ``S`` sequences (contexts 0, then random; all ``CTX`` where
    ``sizes`` has it), without padding rows; and the pages."""
    rows = sizes.get("S", sizes.get("T", 3))
    contexts = [0, *rng.integers(1, 5 * page_tokens, rows - 1).tolist()]
    if "CTX" in sizes:
        contexts = [sizes["CTX"]] * rows
    chunks, pages = _sequences(contexts, [1] * rows, page_tokens, rng)
    columns = sizes.get("P", max(cdiv(c.end_tokens, page_tokens) for c in chunks) + 1)
    arrays = decode_arrays(chunks, page_columns=columns, page_tokens=page_tokens, num_rows=rows)
    return arrays, pages


def filled_cache(
    rng: np.random.Generator, shape: tuple[int, int, int], inputs: dict[str, Array], dtype: str
) -> tuple[Array, list[Array]]:
    """A cache ``[PAGES, page_tokens, W]`` with random rows for every position up to the new tokens', NaN
    elsewhere; and each sequence's rows ``[N, W]`` in float64."""
    cache = np.full(shape, np.nan, MEMORY[dtype])
    rows = []
    lengths = inputs["seq_ctx"] + np.bincount(inputs["token_seq"])
    for table, length in zip(inputs["page_table"], lengths, strict=True):
        position = np.arange(length)
        values = normal(rng, (length, shape[2]), dtype)
        cache[table[position // shape[1]], position % shape[1]] = values
        rows.append(values.astype(np.float64))
    return cache, rows
