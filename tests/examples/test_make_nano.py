"""The committed example is what its script writes; the byte-pair learner keeps its rules."""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from k3compiler.graph.checkpoint import check_checkpoint, load_checkpoint_config
from k3compiler.reference.random_checkpoint import make_checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples"
NANO = EXAMPLES / "k3-nano"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_nano", EXAMPLES / "make_nano.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_weights_are_the_scripts(script: ModuleType, tmp_path: Path) -> None:
    config = make_checkpoint(tmp_path, script.nano_config(), script.SEED, wrapper=True)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (NANO / name).read_bytes()
    assert load_checkpoint_config(NANO) == config
    check_checkpoint(NANO, config)


def test_the_committed_tokenizer() -> None:
    lines = [line.split() for line in (NANO / "tiktoken.model").read_text().splitlines()]
    tokens = [base64.b64decode(token) for token, _ in lines]
    assert [int(rank) for _, rank in lines] == list(range(4096))
    assert tokens[:256] == [bytes([n]) for n in range(256)] and len(set(tokens)) == 4096
    config = json.loads((NANO / "tokenizer_config.json").read_text())
    added = {int(n): entry["content"] for n, entry in config["added_tokens_decoder"].items()}
    assert added[4098] == config["eos_token"] == "<|end_of_msg|>"
    assert added[4096 + 21] == "<|media_pad|>" and max(added) == 4096 + 255


def test_learning_ranks(script: ModuleType) -> None:
    text = "low low low low lower lower newest newest newest widest"
    ranks = script.learn_ranks(text, 262)
    assert ranks == script.learn_ranks(text, 262)
    # equally frequent pairs: the one that sorts first wins ("lo" before "ow")
    assert ranks[256:] == [b"lo", b"low", b" low", b"es", b"est", b" n"]
