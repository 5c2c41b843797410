"""The Kimi-Linear family against transformers, whose LoRA norm eps (1e-6) is the reference's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3compiler.package.safetensors_map import CheckpointFiles
from k3compiler.reference.model import ReferenceModel
from k3compiler.reference.random_checkpoint import make_checkpoint
from k3compiler.reference.tiny import tiny_config

torch = pytest.importorskip("torch", reason="torch is not installed (extra: oracle)")
pytest.importorskip("transformers.models.kimi_linear", reason="no transformers with kimi_linear")

TOKENS = np.random.default_rng(4).integers(0, 211, 37).tolist()


def load(directory: Path) -> Any:
    """The model in float32, eager attention, no hub, no foreign kernels."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def test_prefill_and_cached_decode(tmp_path: Path) -> None:
    config = make_checkpoint(tmp_path, tiny_config("linear"), 3)
    reference = ReferenceModel(config, CheckpointFiles(tmp_path), np.float64)
    want = reference.forward(TOKENS)
    oracle = load(tmp_path)
    with torch.no_grad():
        whole = oracle(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
        first = oracle(torch.tensor([TOKENS[:20]]), use_cache=True)
        parts, cache = [first.logits[0].numpy()], first.past_key_values
        for token in TOKENS[20:]:
            out = oracle(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            parts.append(out.logits[0].numpy())
    assert np.abs(want).max() > 5
    assert np.abs(whole - want).max() < 1e-3
    assert np.abs(np.concatenate(parts) - want).max() < 1e-3
    assert np.array_equal(whole.argmax(1), want.argmax(1))
