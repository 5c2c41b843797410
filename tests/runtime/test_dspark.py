"""The fast draft against the reference in float64, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from k3compiler.draft_config import DraftConfig, draft_tensors, load_draft_config
from k3compiler.errors import K3Error
from k3compiler.package.safetensors_map import CheckpointFiles
from k3compiler.reference.dspark import TARGET_HEAD, DraftModel
from k3compiler.runtime.dspark import DSparkDrafter, DSparkModel
from k3compiler.runtime.speculation import Known

pytestmark = pytest.mark.t1

NANO = Path(__file__).parents[2] / "examples" / "k3-nano-dspark"
SCALING = {"factor": 32, "original_max_position_embeddings": 128, "mscale": 1, "mscale_all_dim": 1}
SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
    "target_layer_ids": [0, 2],
    "target_hidden_size": 20,
    "block_size": 4,
    "mask_token_id": 49,
    "markov_rank": 5,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "rope_scaling": SCALING,
}


def small() -> tuple[DraftConfig, dict[str, Any]]:
    """A draft with YaRN, and random weights (its target's head among them)."""
    config, rng = DraftConfig.from_json(SMALL), np.random.default_rng(7)
    weights = {
        name: rng.standard_normal(shape) / np.sqrt(shape[-1])
        for name, shape in draft_tensors(config).items()
    }
    head = rng.standard_normal((config.vocab_size, config.hidden_dim))
    return config, weights | {TARGET_HEAD: head}


def test_many_sequences_at_once_are_the_reference_one_by_one() -> None:
    """Contexts of 0, 1 and 40 positions, written in pieces at their places."""
    config, weights = small()
    rng, slow = np.random.default_rng(8), DraftModel(config, weights)
    fast = DSparkModel(config, weights, weights[TARGET_HEAD])
    anchors, contexts, expected = np.array([3, 0, 17]), list[Any](), list[Any]()
    for anchor, length in zip(anchors, (0, 1, 40), strict=True):
        width = len(config.target_layers) * config.target_dim
        taps = rng.standard_normal((length, width))
        cache = slow.new_cache()
        if length:
            slow.extend(cache, taps.reshape(length, -1, config.target_dim))
        flat, at = taps.astype(np.float32), np.arange(length)
        rows = np.zeros((0, config.num_layers, config.row_dim), np.float32)
        for part in np.array_split(at, 3):
            if len(part):
                rows = np.concatenate([rows, fast.rows(flat[part], part)])
        assert np.allclose(rows, np.stack(cache.rows, axis=1), atol=2e-5)
        contexts.append(rows)
        expected.append(slow.propose(int(anchor), cache).tokens)
    assert np.array_equal(fast.propose(anchors, contexts), np.stack(expected))


def test_rows_lie_in_the_cells_of_their_tokens() -> None:
    """Two sequences, pages out of order: the same drafts as from the model alone."""
    config, weights = small()
    model = DSparkModel(config, weights, weights[TARGET_HEAD])
    drafter, rng = DSparkDrafter(model, 8, "f32"), np.random.default_rng(9)
    memory = Pages(9, 3, 8, config.row_dim)
    drafter.attach(memory)
    pages, lengths = [[5, 2, 7], [3]], [20, 6]
    taps = [rng.standard_normal((n, 2, config.target_dim)).astype(np.float32) for n in lengths]
    where = [np.arange(n) for n in lengths]
    rows = [np.array(p)[at // 8] for p, at in zip(pages, where, strict=True)]
    drafter.observe(np.concatenate(taps), np.concatenate(rows), np.concatenate(where))
    assert np.isnan(memory.cells[[0, 1, 4, 6, 8]]).all() and np.isnan(memory.cells[:, 0]).all()
    assert np.isnan(memory.cells[7, :, 4:]).all()
    known = [Known([1] * n + [a], p) for n, a, p in zip(lengths, (4, 9), pages, strict=True)]
    contexts = [model.rows(t.reshape(len(t), -1), at) for t, at in zip(taps, where, strict=True)]
    expected = model.propose(np.array([4, 9]), contexts).tolist()
    assert drafter.propose(known, [4, 2]) == [expected[0], expected[1][:2]]


class Pages:
    """Cells of pages as an array, NaN where nothing wrote; the draft's layers are the last."""

    def __init__(self, *shape: int) -> None:
        self.cells = np.full(shape, np.nan, np.float32)

    def write_cells(self, pages: Any, cells: Any, values: Any) -> None:
        self.cells[pages, -values.shape[1] :, cells] = values

    def read_cells(self, pages: Any, num_layers: int, dtype: Any) -> Any:
        return self.cells[pages, -num_layers:].astype(dtype)


@pytest.mark.parametrize(
    ("change", "code", "where"),
    [
        ({"hidden_size": None}, "K3-G001", "hidden_size"),
        ({"block_size": "7"}, "K3-G001", "block_size"),
        ({"rope_theta": True}, "K3-G001", "rope_theta"),
        ({"rope_scaling": {"factor": "x"}}, "K3-G001", "factor"),
        ({"target_layer_ids": [2, 0]}, "K3-G001", "target_layer_ids"),
        ({"target_layer_ids": []}, "K3-G001", "target_layer_ids"),
        ({"model_type": "eagle"}, "K3-G002", "model_type"),
        ({"mla_use_nope": True}, "K3-G002", "mla_use_nope"),
        ({"markov_head_type": "gated"}, "K3-G002", "markov_head_type"),
    ],
)
def test_configs_are_refused_by_key(change: dict[str, Any], code: str, where: str) -> None:
    with pytest.raises(K3Error) as caught:
        DraftConfig.from_json(SMALL | change)
    assert caught.value.code == code and where in caught.value.where


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_unreadable_configs_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(K3Error, match="K3-G005"):
        load_draft_config(tmp_path)


def _package(**changes: Any) -> tuple[Any, Any]:
    """What of the nano package the draft looks at."""
    mla = SimpleNamespace(kv_lora_rank=changes.pop("latent", 128), rope_dim=32)
    values = {"vocab_size": 4352, "hidden_dim": 256, "num_layers": 14, "tie_embeddings": True}
    config = SimpleNamespace(**values | changes, mla=mla)
    manifest = SimpleNamespace(config=config, page_tokens=64, storage_dtype="f32")
    return manifest, {"decode": SimpleNamespace(taps=(3, 7, 11), phase="decode")}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "K3-R014"),
        ({"vocab_size": 4351}, "K3-G007"),
        ({"hidden_dim": 128}, "K3-G007"),
        ({"num_layers": 13}, "K3-G007"),
        ({"latent": 96}, "K3-G007"),
    ],
)
def test_another_model_or_package_is_refused(changes: dict[str, Any], code: str) -> None:
    manifest, plans = _package(**changes)
    with pytest.raises(K3Error, match=code):
        DSparkDrafter.open(NANO, manifest, plans, CheckpointFiles(NANO))


def test_a_draft_lacking_a_tensor_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((NANO / "config.json").read_text())
    tensors = {"final_norm.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    header = json.dumps(tensors).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(4)
    (tmp_path / "model.safetensors").write_bytes(data)
    manifest, _ = _package()
    plans: Any = {"decode": SimpleNamespace(taps=(3, 7, 11, 13), phase="decode")}
    with pytest.raises(K3Error, match="K3-G004"):
        DSparkDrafter.open(tmp_path, manifest, plans, CheckpointFiles(NANO))
