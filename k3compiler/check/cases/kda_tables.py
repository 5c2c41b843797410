"""Ragged batches for the KDA cases: step tables, slots, gates over the whole range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from k3compiler.check.case import MEMORY, Array
from k3compiler.reference.kda_chunk import chunk_bounds

_LENGTHS = (1, 65, 2, 37, 3, 64, 130)


@dataclass(frozen=True)
class RaggedStep:
    """The step inputs of docs/package.md for some sequences, and how many slots the caches have."""

    tables: dict[str, Array]
    slots: int

    @property
    def starts(self) -> Array:
        return self.tables["seq_start"]

    def pick(self, *names: str) -> dict[str, Array]:
        """Some of the tables by name."""
        return {name: self.tables[name] for name in names}


def ragged_step(rng: np.random.Generator, sizes: dict[str, int]) -> RaggedStep:
    """``T`` tokens in ``S`` sequences, some with context; segments of ``L`` chunks; checkpoints.

    Every other chunk is kept, whether its segment ends there or goes on; a sequence's last is kept twice, in
    its slot and in the checkpoint's.
    """
    count = sizes.get("S", 3)
    tokens = max(sizes.get("T", 300), count)
    chunk_parts: list[tuple[Array, Array]] = []
    seg_chunk, seq_seg, chunk_seq, seg_seq = [0], [0], [], []
    starts = np.concatenate([[0], np.cumsum(_lengths(rng, count, tokens))]).astype(np.int32)
    context = np.where(np.arange(count) % 2 == 0, 0, rng.integers(1, 200, count)).astype(np.int32)
    for s in range(count):
        first, last = chunk_bounds(int(starts[s + 1] - starts[s]), int(context[s]))
        before = len(chunk_seq)
        chunk_parts.append((first + starts[s], last + starts[s]))
        chunk_seq += [s] * len(first)
        ends = [
            *range(before + sizes.get("L", 1), len(chunk_seq), sizes.get("L", 1)),
            len(chunk_seq),
        ]
        seg_chunk += ends
        seg_seq += [s] * len(ends)
        seq_seg.append(len(seg_seq))
    kept = np.arange(len(chunk_seq))[::2]
    slots = 1 + count + len(kept) + 1
    order = (1 + rng.permutation(slots - 1)).astype(np.int32)
    checkpoint = np.full(len(chunk_seq), -1, np.int32)
    checkpoint[kept] = order[count : count + len(kept)]
    tables = {
        "seq_start": starts,
        "seq_ctx": context,
        "seq_slot": order[:count],
        "chunk_start": np.concatenate([a for a, _ in chunk_parts]).astype(np.int32),
        "chunk_end": np.concatenate([b for _, b in chunk_parts]).astype(np.int32),
        "chunk_seq": np.array(chunk_seq, np.int32),
        "chunk_ckpt": checkpoint,
        "seg_chunk": np.array(seg_chunk, np.int32),
        "seg_seq": np.array(seg_seq, np.int32),
        "seq_seg": np.array(seq_seg, np.int32),
    }
    return RaggedStep(tables, slots)


def _lengths(rng: np.random.Generator, count: int, tokens: int) -> Array:
    """``count`` lengths of at least 1 that sum to ``tokens``: awkward small ones and one long one."""
    lengths, left = [], tokens
    for i in range(count - 1):
        lengths.append(max(1, min(_LENGTHS[i % len(_LENGTHS)], left - (count - 1 - i))))
        left -= lengths[-1]
    return rng.permutation([*lengths, left])


def random_decay(
    rng: np.random.Generator, tokens: int, heads: int, k_dim: int, lower_bound: float | None
) -> Array:
    """Log-decays ``[T, H, Dk] f32``: even heads over the whole range, odd heads slow (long memory)."""
    reach = 5.0 if lower_bound is None else -lower_bound
    fast = reach * rng.random((tokens, heads, k_dim))
    if lower_bound is None:
        fast = fast * np.exp(2 * rng.standard_normal(fast.shape))  # up to hundreds
    slow = 10.0 ** rng.uniform(-4, -1, fast.shape)
    return -np.where(np.arange(heads)[:, None] % 2 == 0, fast, slow).astype(np.float32)


def unit_keys(rng: np.random.Generator, shape: tuple[int, ...], cosine: float = 0.3) -> Array:
    """Unit vectors along the last axis whose mutual cosine is about ``cosine``."""
    shared = rng.standard_normal(shape[1:])
    shared /= np.linalg.norm(shared, axis=-1, keepdims=True)
    own = rng.standard_normal(shape)
    own /= np.linalg.norm(own, axis=-1, keepdims=True)
    mixed = np.sqrt(cosine) * shared + np.sqrt(1 - cosine) * own
    return mixed / np.linalg.norm(mixed, axis=-1, keepdims=True)


def slot_memory(
    rng: np.random.Generator, step: RaggedStep, shape: tuple[int, ...], dtype: str
) -> Array:
    """A cache ``[SLOTS, *shape]``: numbers for sequences with context, NaN in every other slot."""
    memory = np.full((step.slots, *shape), np.nan, MEMORY[dtype])
    for slot, context in zip(step.tables["seq_slot"], step.tables["seq_ctx"], strict=True):
        if context:
            memory[slot] = (0.5 * rng.standard_normal(shape)).astype(MEMORY[dtype])
    return memory
