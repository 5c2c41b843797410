"""Write examples/k3-nano: a small K3 with random weights, in the published format.

    python examples/make_nano.py [DIRECTORY]

Deterministic for a Python version: the tokenizer is learnt from that Python's standard library.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

from k3compiler.config import KdaConfig, MlaConfig, ModelConfig, MoeConfig
from k3compiler.reference.random_checkpoint import make_checkpoint

SEED = 20
NUM_RANKS = 4096
NUM_SPECIALS = 256
TEXT_BYTES = 6_000_000
SKIPPED = {"site-packages", "test", "tests", "encodings"}  # foreign, or tables rather than text
# Offsets past the ranks, as in K3 (spec 7.2); the unnamed slots are reserved.
SPECIALS = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|end_of_msg|>",
    3: "<|open|>",
    4: "<|close|>",
    5: "<|sep|>",
    6: "[start_header_id]",
    7: "[end_header_id]",
    9: "[EOT]",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    254: "[UNK]",
    255: "[PAD]",
}
# K3's pre-tokeniser without its Han rules, which the learning text (ASCII) does not need.
WORD = re.compile(
    r"[^\r\n\w]?[A-Z]*[a-z]+(?:'(?:[sdmt]|ll|ve|re))?|[^\r\n\w]?[A-Z]+|[0-9]{1,3}"
    r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def nano_config() -> ModelConfig:
    """14 layers: three AttnRes blocks of four and a remainder; the last two layers are MLA."""
    return ModelConfig(
        name="kimi_k3",
        vocab_size=NUM_RANKS + NUM_SPECIALS,
        hidden_dim=192,
        num_layers=14,
        mla_layers=(3, 7, 12, 13),
        num_dense=1,
        dense_dim=512,
        activation="situ",
        situ_beta=4.0,
        situ_linear_beta=25.0,
        rms_eps=1e-5,
        attn_res_block=4,
        max_context=4096,
        kda=KdaConfig(4, 64, 4, -5.0, True, 64),
        mla=MlaConfig(4, 96, 128, 64, 32, 64, True),
        moe=MoeConfig(32, 4, 2, 64, 96, True, True, 1.0, "mxfp4"),
        bos_id=NUM_RANKS,
        eos_id=NUM_RANKS + 2,
        pad_id=NUM_RANKS + 255,
    )


def library_text() -> str:
    """The first megabytes of the standard library's ASCII sources, in order of name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: list[str] = []
    size = 0
    for path in sorted(root.rglob("*.py")):
        if size >= TEXT_BYTES or SKIPPED & set(path.parts):
            continue
        content = path.read_bytes()
        if content.isascii():
            parts.append(content.decode())
            size += len(content)
    return "\n".join(parts)


def learn_ranks(text: str, num_ranks: int) -> list[bytes]:
    """Byte-pair encoding: all 256 bytes first, then the most frequent pair, again and again.

    Ties go to the pair that sorts first, so that the result depends on the text only.
    """
    tokens = [bytes([n]) for n in range(256)]
    ids = {token: n for n, token in enumerate(tokens)}
    pairs = PairCounts(text)
    while len(tokens) < num_ranks:
        counts = pairs.counts
        best = min(counts, key=lambda p: (-counts[p], tokens[p[0]], tokens[p[1]]))
        token = tokens[best[0]] + tokens[best[1]]
        if token not in ids:  # else another pair has made these bytes already
            ids[token] = len(tokens)
            tokens.append(token)
        pairs.merge(best, ids[token])
    return tokens


class PairCounts:
    """The text's distinct words as token lists, and how often each adjacent pair occurs."""

    def __init__(self, text: str) -> None:
        found = Counter(WORD.findall(text))
        self.words = [(list(word.encode()), count) for word, count in found.items()]
        self.counts: Counter[tuple[int, int]] = Counter()
        self._where: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for n in range(len(self.words)):
            self._count(n, 1)

    def merge(self, pair: tuple[int, int], token: int) -> None:
        """Replace the pair by the token everywhere."""
        for n in self._where.pop(pair):
            self._count(n, -1)
            word = self.words[n][0]
            at = 0
            while at < len(word) - 1:
                if (word[at], word[at + 1]) == pair:
                    word[at : at + 2] = [token]
                at += 1
            self._count(n, 1)
        self.counts.pop(pair, None)

    def _count(self, n: int, sign: int) -> None:
        word, count = self.words[n]
        for pair in pairwise(word):
            self.counts[pair] += sign * count
            if sign > 0:
                self._where[pair].add(n)


def write_tokenizer(directory: Path, ranks: list[bytes]) -> None:
    """tiktoken.model (base64 and rank per line) and tokenizer_config.json."""
    lines = (f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(ranks))
    (directory / "tiktoken.model").write_text("\n".join(lines) + "\n")
    added = {str(len(ranks) + n): _special(name) for n, name in SPECIALS.items()}
    config = {
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIALS.values()),
        "bos_token": "[BOS]",
        "eos_token": "<|end_of_msg|>",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "clean_up_tokenization_spaces": False,
        "model_max_length": nano_config().max_context,
        "tokenizer_class": "TikTokenTokenizer",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _special(name: str) -> dict[str, str | bool]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": name, **flags, "special": True}


def main(directory: Path) -> None:
    config = make_checkpoint(directory, nano_config(), SEED, wrapper=True)
    write_tokenizer(directory, learn_ranks(library_text(), NUM_RANKS))
    size = sum(path.stat().st_size for path in directory.iterdir())
    print(f"{directory}: {config.num_layers} layers, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "k3-nano")
