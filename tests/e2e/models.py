"""Small checkpoints and their packages: each is written and compiled once a test run, by whoever asks first."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from k3compiler.package.safetensors_map import CheckpointFiles
from k3compiler.package.tensor_table import ExpertFormat
from k3compiler.reference.model import ReferenceModel
from k3compiler.runtime.engine import Engine

Floats = NDArray[np.floating]
Moe = Literal["a16w4", "a8w4"]

NUM_TOKENS = 500
EXAMPLES = Path(__file__).parents[2] / "examples"
NANO, DRAFT = EXAMPLES / "k3-nano", EXAMPLES / "k3-nano-dspark"
TEXT = (EXAMPLES / "heldout" / "code.txt").read_text()
Make = Callable[..., Engine]


@dataclass(frozen=True)
class Model:
    """A checkpoint, its package for the CPU in float32, and what other implementations say.

    Every question asks for logits ``[500, vocab]`` of the same tokens; causality makes their first
    n rows the logits of the first n tokens.
    """

    name: str
    checkpoint: Path
    package: Path
    vocab_size: int

    @cached_property
    def tokens(self) -> list[int]:
        rng = np.random.default_rng(len(self.name))
        return rng.integers(0, self.vocab_size, NUM_TOKENS).tolist()

    @cached_property
    def reference(self) -> ReferenceModel:
        """The numpy model in float64."""
        from k3compiler.graph.checkpoint import load_checkpoint_config

        config = load_checkpoint_config(self.checkpoint)
        return ReferenceModel(config, CheckpointFiles(self.checkpoint), np.float64)

    @cached_property
    def reference_logits(self) -> Floats:
        return self.reference.forward(self.tokens)

    @cached_property
    def mlx_logits(self) -> Floats:
        """mlx-lm's; skips the test where it is not installed."""
        pytest.importorskip("mlx_lm", reason="mlx-lm is not installed (extra: oracle)")
        from tests.oracles.mlx_oracle import MlxOracle

        return MlxOracle(self.checkpoint).forward(self.tokens)

    @cached_property
    def transformers_logits(self) -> Floats:
        """transformers' (the Kimi-Linear family only); skips the test where it cannot run."""
        torch = pytest.importorskip("torch", reason="torch is not installed")
        pytest.importorskip("transformers.models.kimi_linear", reason="no kimi_linear here")
        from tests.oracles.test_transformers import load

        with torch.no_grad():
            return load(self.checkpoint)(torch.tensor([self.tokens])).logits[0].numpy()


class Models:
    """Makes models on demand under one directory, which the workers of a test run share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: dict[tuple[str, str, str], Model] = {}

    def tiny(self, name: str, *, experts: ExpertFormat = "mxfp4", moe: Moe = "a16w4") -> Model:
        """One of ``reference/tiny.py``, random weights."""
        key = (name, experts, moe)
        if key not in self._made:
            self._made[key] = self._make_tiny(name, experts, moe)
        return self._made[key]

    def nano(self) -> Model:
        """The example checkpoint, compiled for its draft."""
        key = ("nano", "", "")
        if key not in self._made:
            package = self._package("nano", NANO, "a16w4", draft=DRAFT)
            self._made[key] = self._model("nano", NANO, package)
        return self._made[key]

    def _make_tiny(self, name: str, experts: ExpertFormat, moe: Moe) -> Model:
        from k3compiler.reference.random_checkpoint import make_checkpoint
        from k3compiler.reference.tiny import tiny_config

        label = f"{name}-{experts}"
        with _locked(self.root / f"{label}.lock"):
            if not (self.root / label).exists():
                partial = self.root / f"{label}.partial"
                make_checkpoint(partial, tiny_config(name), 3, experts=experts)
                partial.rename(self.root / label)
        package = self._package(f"{label}-{moe}", self.root / label, moe)
        return self._model(name, self.root / label, package)

    def _package(self, label: str, checkpoint: Path, moe: Moe, draft: Path | None = None) -> Path:
        from k3compiler.driver import compile_model

        package = self.root / f"{label}.package"
        with _locked(self.root / f"{label}.package.wait"):
            if not package.exists():
                compile_model(str(checkpoint), target="cpu", moe=moe, draft=draft, out=package)
        return package

    def _model(self, name: str, checkpoint: Path, package: Path) -> Model:
        from k3compiler.graph.config_import import load_config

        config = load_config(checkpoint / "config.json")
        return Model(name, checkpoint, package, config.vocab_size)


@contextmanager
def _locked(path: Path) -> Generator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def max_difference(ours: Floats, theirs: Floats) -> float:
    """The largest difference of any logit; NaN counts as infinite."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return float(np.nan_to_num(np.abs(ours - theirs), nan=np.inf).max())


def assert_agrees(ours: Floats, theirs: Floats) -> None:
    """Within 1e-3, and the same argmax wherever theirs has its top two 2e-3 apart."""
    assert max_difference(ours, theirs) <= 1e-3
    top = np.sort(theirs, axis=1)
    clear = top[:, -1] - top[:, -2] > 2e-3
    assert np.array_equal(ours.argmax(1)[clear], theirs.argmax(1)[clear])
