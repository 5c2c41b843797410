"""Logits of compiled models against the float64 reference and against other people's code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3compiler.dtypes import dequantize_mxfp8, quantize_mxfp8
from k3compiler.reference import moe
from k3compiler.reference.model import ExpertChoices
from k3compiler.runtime.expert_tap import ExpertTap
from tests.e2e.conftest import Engines, K3c
from tests.e2e.models import Floats, Model, Models, assert_agrees

pytestmark = [pytest.mark.t1, pytest.mark.slow]

LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 129, 500)
CHUNKS = {"whole": None, "sevens": [7], "tokens": [1]}
Matrices = Mapping[int, Floats]
FAMILIES = ("spec", "odd", "unbounded", "linear")


@pytest.fixture(scope="module", params=FAMILIES)
def model(models: Models, request: pytest.FixtureRequest) -> Model:
    family = str(request.param)
    return models.tiny(family, experts="plain" if family == "linear" else "mxfp4")


@pytest.mark.parametrize("chunks", CHUNKS)
def test_every_length_agrees_with_the_reference(
    model: Model, engines: Engines, chunks: str
) -> None:
    want = model.reference_logits
    assert 5 < np.abs(want).max() < 14
    for length in LENGTHS:
        found = engines.of(model).logits(model.tokens[:length], chunks=CHUNKS[chunks])
        assert found.dtype == np.float32
        assert_agrees(found, want[:length])


@pytest.mark.parametrize("chunks", CHUNKS)
def test_agrees_with_mlx_lm(model: Model, engines: Engines, chunks: str) -> None:
    found = engines.of(model).logits(model.tokens, chunks=CHUNKS[chunks])
    assert_agrees(found, model.mlx_logits)


def test_kimi_linear_agrees_with_transformers(models: Models, engines: Engines) -> None:
    model = models.tiny("linear", experts="plain")
    want = model.transformers_logits
    assert_agrees(engines.of(model).logits(model.tokens), want)


def test_plain_experts(models: Models, engines: Engines) -> None:
    """The same weights before packing: other logits than with MXFP4 experts, and right ones."""
    model = models.tiny("spec", experts="plain")
    found = engines.of(model).logits(model.tokens[:129])
    assert_agrees(found, model.reference_logits[:129])
    assert_agrees(found, model.mlx_logits[:129])
    packed = models.tiny("spec")
    assert np.abs(found - packed.reference_logits[:129]).max() > 0.1


def test_a8w4(models: Models, engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 5e-2 (relative Frobenius) of the reference with MXFP8 activations, whose expert choices it is given."""
    model = models.tiny("spec", moe="a8w4")
    tokens, choices = model.tokens[:129], ExpertChoices()
    unrounded = model.reference_logits[:129]
    monkeypatch.setattr(moe, "experts", _experts_a8)
    want = model.reference.forward(tokens, choices=choices)
    engine = engines.of(model)
    with ExpertTap(engine.executor, choices.chosen):
        found = engine.logits(tokens)
    assert _relative(found, want) < 5e-2 < _relative(found, unrounded)


def _experts_a8(
    z: Floats, ids: Floats, weights: Floats, w1: Matrices, w3: Matrices, w2: Matrices, act: Any
) -> Floats:
    """``reference/moe.py``'s, with the inputs of both matrix products rounded to MXFP8."""
    r = np.zeros_like(z)
    for e in np.unique(ids):
        token, slot = np.nonzero(ids == e)
        x = _rounded(z[token])
        h = _rounded(act(x @ w1[int(e)].T, x @ w3[int(e)].T))
        np.add.at(r, token, weights[token, slot][:, None] * (h @ w2[int(e)].T))
    return r


def _rounded(x: Floats) -> Floats:
    return dequantize_mxfp8(*quantize_mxfp8(x)).astype(x.dtype)


def _relative(found: Floats, want: Floats) -> float:
    return float(np.linalg.norm(found - want) / np.linalg.norm(want))


def test_the_comparison_is_not_blind(models: Models, engines: Engines) -> None:
    """One weight changed by an eighth of its size is seen."""
    model = models.tiny("spec")
    engine = engines.of(model)
    name = next(p.name for p in engine.package.weights.params if p.name.endswith("o_norm"))
    buffer = engine.executor._fixed[f"w:{name}"].buffer
    kept = engine.executor.device.download(buffer, "f32", (1,))
    try:
        engine.executor.device.upload(buffer, (kept * 1.125).astype(np.float32))
        found = engine.logits(model.tokens[:65])
    finally:
        engine.executor.device.upload(buffer, kept)
    with pytest.raises(AssertionError):
        assert_agrees(found, model.reference_logits[:65])


def test_the_command_writes_what_the_engine_gives(
    models: Models, engines: Engines, tmp_path: Path, k3c: K3c
) -> None:
    model = models.tiny("spec")
    ids = tmp_path / "ids.npy"
    np.save(ids, np.array(model.tokens[:65], np.int32))
    out = tmp_path / "logits"
    options = ("--weights", model.checkpoint, "--tokens", f"@{ids}", "--out", out)
    assert k3c("logits", model.package, *options, "--chunks", "20,1,1", "--dtype", "float32") == 0
    found = np.load(out)
    assert found.dtype == np.float32
    assert np.array_equal(found, engines.of(model).logits(model.tokens[:65], chunks=[20, 1, 1]))
