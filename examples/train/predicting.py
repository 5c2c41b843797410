"""Bits per byte on held-out text: the model, a byte 5-gram, and xz; loss by length of context.

Windows of 4,096 tokens start every 1,024, so that a token is predicted from four lengths of
context: the curve compares equal tokens and does not depend on which text stands where.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.train.ngram import ORDER, ByteModel
from examples.train.shards import SHARD_SUFFIX, read_shard, read_shards
from k3compiler.check.eval import token_losses

Array = NDArray[Any]
Logits = Callable[[Sequence[int]], Array]
WINDOW, STRIDE = 4096, 1024
GROUPS, PER_GROUP = 1, 5
FIRST = 12 * 8192  # tokens that the training program scores at its end
SEPARATOR = b"\0"  # between documents; the text has none


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Each token's bytes; the end of a document is one zero byte, which is not counted."""

    table: list[bytes]

    def text(self, tokens: Array) -> Array:
        """The bytes of ``tokens``: ``[N] u8``."""
        joined = b"".join(map(self.table.__getitem__, tokens.tolist()))
        return np.frombuffer(joined, np.uint8)

    @classmethod
    def of(cls, token_bytes: Callable[[int], bytes], ranks: int, size: int) -> Vocabulary:
        return cls([token_bytes(n) for n in range(ranks)] + [SEPARATOR] * (size - ranks))


def training_text(data: Path, vocabulary: Vocabulary) -> Iterator[Array]:
    """The text of every training shard, code and prose."""
    for path in sorted(data.glob(f"train-*{SHARD_SUFFIX}")):
        yield vocabulary.text(read_shard(path))


def sampled_groups(tokens: Array) -> list[Array]:
    """Stretches spread evenly over the held-out tokens, as long as a group of windows needs."""
    length = WINDOW + (PER_GROUP - 1) * STRIDE + 1
    starts = np.linspace(0, len(tokens) - length, GROUPS).astype(int)
    return [tokens[start : start + length] for start in starts]


def measure_predictions(
    logits: Logits, data: Path, kind: str, vocabulary: Vocabulary
) -> dict[str, Any]:
    """Bits per byte of windows that do not overlap, and nats per token by context length."""
    spent, num_bytes, num_tokens = 0.0, 0, 0
    by_context = np.zeros(WINDOW // STRIDE)
    for group in sampled_groups(read_shards(data, f"heldout-{kind}")):
        rows: list[Array] = []
        for n in range(PER_GROUP):
            window = group[n * STRIDE : n * STRIDE + WINDOW + 1].astype(np.int64)
            rows.append(token_losses(logits(window[:-1].tolist()), window[1:]))
            if n % (WINDOW // STRIDE) == 0:
                spent += rows[-1].sum() / log(2)
                num_bytes += int(np.count_nonzero(vocabulary.text(window[1:])))
                num_tokens += WINDOW
        by_context += _by_context(np.stack(rows).reshape(PER_GROUP, -1, STRIDE))
    return {
        "tokens": num_tokens,
        "bytes": num_bytes,
        "bits_per_byte": float(spent / num_bytes),
        "loss_by_context": {
            f"{n * STRIDE}-{(n + 1) * STRIDE}": loss
            for n, loss in enumerate((by_context / GROUPS).tolist())
        },
        "tokens_by_context": GROUPS * (PER_GROUP - WINDOW // STRIDE + 1) * STRIDE,
    }


def _by_context(losses: Array) -> Array:
    """Mean loss by quarter of a window, of the tokens that stand in all four quarters.

    Shapes: ``losses [windows, quarters, STRIDE]`` -> ``[quarters]``.
    """
    windows, quarters, _ = losses.shape
    blocks = np.arange(quarters - 1, windows)  # in strides from the group's start
    return np.array([losses[blocks - q, q].mean() for q in range(quarters)])


def measure_baselines(
    model: ByteModel, data: Path, kind: str, vocabulary: Vocabulary
) -> dict[str, float]:
    """Bits per byte: the 5-gram on the tokens that the training program scores ("first") and on all
    the held-out text; xz on the latter.
    """
    tokens = read_shards(data, f"heldout-{kind}")
    first = np.pad(vocabulary.text(tokens[1 : FIRST + 1]), (ORDER - 1, 0))
    text = vocabulary.text(tokens)
    plain = text[text != 0]
    padded = np.pad(text, (ORDER - 1, 0))
    return {
        "kneser_ney_5gram_first": model.bits(first, ORDER - 1) / np.count_nonzero(first),
        "kneser_ney_5gram_all": model.bits(padded, ORDER - 1) / len(plain),
        "xz_9_all": 8 * len(lzma.compress(plain.tobytes(), preset=9)) / len(plain),
        "bytes_all": len(plain),
    }
