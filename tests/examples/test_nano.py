"""The committed k3-nano is a whole, strict checkpoint; the byte-pair learner keeps its rules."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from k3compiler.graph.checkpoint import check_checkpoint, load_checkpoint_config

ROOT = Path(__file__).parents[2]
NANO = ROOT / "examples" / "k3-nano"
sys.path.insert(0, str(ROOT))

from examples.train.bpe import count_words, learn_ranks  # noqa: E402
from examples.train.shape import nano_config  # noqa: E402


def test_the_committed_checkpoint() -> None:
    config = load_checkpoint_config(NANO)
    assert config == nano_config()
    check_checkpoint(NANO, config)
    assert sum(path.stat().st_size for path in NANO.iterdir()) <= 24_000_000


def test_the_committed_tokenizer() -> None:
    lines = [line.split() for line in (NANO / "tiktoken.model").read_text().splitlines()]
    tokens = [base64.b64decode(token) for token, _ in lines]
    assert [int(rank) for _, rank in lines] == list(range(4096))
    assert tokens[:256] == [bytes([n]) for n in range(256)] and len(set(tokens)) == 4096
    config = json.loads((NANO / "tokenizer_config.json").read_text())
    added = {int(n): entry["content"] for n, entry in config["added_tokens_decoder"].items()}
    assert added[4098] == config["eos_token"] == "<|end_of_msg|>"
    assert added[4096 + 21] == "<|media_pad|>" and max(added) == 4096 + 255


def test_learning_ranks() -> None:
    text = "low low low low lower lower newest newest newest widest"
    words = count_words([text, "caf\u00e9"])
    assert words[" low"] == 3 and not any("caf" in word for word in words)
    ranks = learn_ranks(words, 262)
    # Words that occur once do not count. " l", "lo", "ow" and "we" occur five times each: the pair
    # that sorts first wins.
    assert ranks[:256] == [bytes([n]) for n in range(256)]
    assert ranks[256:] == [b" l", b" lo", b" low", b" n", b" ne", b" new"]
