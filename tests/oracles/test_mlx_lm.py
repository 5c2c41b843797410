"""The reference against mlx-lm: packed and plain experts, one prefill and cached decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from k3compiler.package.safetensors_map import CheckpointFiles
from k3compiler.package.tensor_table import ExpertFormat
from k3compiler.reference.model import ReferenceModel
from k3compiler.reference.random_checkpoint import make_checkpoint
from k3compiler.reference.tiny import tiny_config
from tests.oracles.mlx_oracle import MlxOracle

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed (extra: oracle)")

TOKENS = np.random.default_rng(1).integers(0, 170, 37).tolist()
CASES: list[tuple[str, ExpertFormat]] = [
    ("spec", "plain"),
    ("spec", "mxfp4"),
    ("odd", "plain"),
    ("odd", "mxfp4"),
    ("unbounded", "mxfp4"),
    ("linear", "plain"),
]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("name", "experts"), CASES)
def test_logits(tmp_path: Path, name: str, experts: ExpertFormat, dtype: type) -> None:
    config = make_checkpoint(tmp_path, tiny_config(name), 3, experts=experts)
    reference = ReferenceModel(config, CheckpointFiles(tmp_path), dtype)
    oracle = MlxOracle(tmp_path)
    whole = oracle.forward(TOKENS)
    assert 5 < np.abs(whole).max() < 12
    assert_agrees(reference.forward(TOKENS), whole)
    ours, theirs = reference.new_cache(), oracle.new_cache()
    for piece in [TOKENS[:20], *([t] for t in TOKENS[20:])]:
        assert_agrees(reference.forward(piece, ours), oracle.forward(piece, theirs))


def assert_agrees(ours: np.ndarray, theirs: np.ndarray) -> None:
    """1e-3, and the same argmax wherever the top two are apart."""
    assert np.abs(ours - theirs).max() < 1e-3
    top = np.sort(ours, axis=1)
    clear = top[:, -1] - top[:, -2] > 2e-3
    assert np.array_equal(ours.argmax(1)[clear], theirs.argmax(1)[clear])


def test_the_example_checkpoint() -> None:
    from k3compiler.graph.checkpoint import check_checkpoint, load_checkpoint_config

    directory = Path(__file__).parents[2] / "examples" / "k3-nano"
    config = load_checkpoint_config(directory)
    files = check_checkpoint(directory, config)
    assert sum(path.stat().st_size for path in directory.iterdir()) <= 24_000_000
    tokens = [n % config.vocab_size for n in range(7, 5000, 127)]
    ours = ReferenceModel(config, files, np.float64).forward(tokens)
    assert ours.std() > 1
    assert_agrees(ours, MlxOracle(directory).forward(tokens))


def test_the_oracle_tells_a_wrong_constant(tmp_path: Path) -> None:
    """One bound of the gate changed: the comparison must not be blind."""
    from dataclasses import replace

    config = make_checkpoint(tmp_path, tiny_config(), 3)
    wrong = replace(config, kda=replace(config.kda, gate_lower_bound=-4.0))
    logits = ReferenceModel(wrong, CheckpointFiles(tmp_path)).forward(TOKENS)
    assert np.abs(logits - MlxOracle(tmp_path).forward(TOKENS)).max() > 0.5
