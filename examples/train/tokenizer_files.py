"""tiktoken.model and tokenizer_config.json of k3-nano."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from examples.train.shape import nano_config

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


def write_tokenizer(directory: Path, ranks: list[bytes]) -> None:
    """Base64 and rank per line; the named special tokens."""
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
