"""What users get wrong: each mistake is refused by its code, exit 1, and names the thing to mend."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from k3compiler.errors import K3Error
from k3compiler.package.manifest import SCHEMA_VERSION, TargetRecord
from k3compiler.runtime.engine import Engine
from k3compiler.runtime.sampling import SamplingParams
from tests.e2e.conftest import Engines, K3c
from tests.e2e.models import Model, Models
from tests.e2e.packages import copy_package, edit_manifest, flip_byte, reseal

pytestmark = [pytest.mark.t1, pytest.mark.slow]
Err = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(models: Models) -> Model:
    return models.tiny("spec")


@pytest.fixture
def checkpoint(model: Model, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(model.checkpoint, tmp_path / "checkpoint"))


def _weights(checkpoint: Path) -> Path:
    return checkpoint / "model.safetensors"


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (Path.unlink, "no safetensors file"),
        (_truncate, "truncated"),
        (_cut_in_the_header, "100 bytes in the file"),
        (lambda path: path.write_bytes(b""), "0 bytes"),
    ],
    ids=["missing", "truncated", "header", "empty"],
)
def test_safetensors_missing_or_truncated(
    model: Model,
    checkpoint: Path,
    tmp_path: Path,
    k3c: K3c,
    capsys: Err,
    damage: Callable[[Path], object],
    says: str,
) -> None:
    damage(_weights(checkpoint))
    assert k3c("compile", checkpoint, "--target", "cpu", "--out", tmp_path / "pkg") == 1
    assert says in (text := capsys.readouterr().err) and "K3-G005" in text
    assert not (tmp_path / "pkg").exists()
    ids = ("--token-ids", "1,2")
    assert k3c("generate", model.package, "--weights", checkpoint, *ids) == 1
    assert says in (text := capsys.readouterr().err) and "K3-G005" in text


def test_a_missing_shard(tmp_path: Path, k3c: K3c, capsys: Err) -> None:
    from k3compiler.reference.random_checkpoint import make_checkpoint
    from k3compiler.reference.tiny import tiny_config

    make_checkpoint(tmp_path / "sharded", tiny_config(), num_shards=3)
    lost = tmp_path / "sharded" / "model-00002-of-00003.safetensors"
    lost.unlink()
    assert k3c("compile", tmp_path / "sharded", "--target", "cpu", "-o", tmp_path / "pkg") == 1
    assert lost.name in (text := capsys.readouterr().err) and "K3-G005" in text


def test_a_tensor_missing_extra_and_of_the_wrong_shape(
    model: Model, checkpoint: Path, tmp_path: Path, k3c: K3c, capsys: Err
) -> None:
    tensors = load_file(_weights(checkpoint))
    del tensors["model.norm.weight"]
    tensors["model.surprise"] = np.zeros(3, np.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].copy()
    save_file(tensors, _weights(checkpoint))
    assert k3c("compile", checkpoint, "--target", "cpu", "--out", tmp_path / "pkg") == 1
    text = capsys.readouterr().err
    assert "K3-G004" in text and "3 faults" in text
    for fault in ("missing: model.norm.weight", "extra: model.surprise", "shape: lm_head.weight"):
        assert fault in text
    ids = ("--token-ids", "1,2")
    assert k3c("generate", model.package, "--weights", checkpoint, *ids) == 1
    text = capsys.readouterr().err
    assert "K3-R001" in text and "model.norm.weight is missing" in text and "lm_head" in text


def test_nan_scale_byte(model: Model, checkpoint: Path, k3c: K3c, capsys: Err) -> None:
    tensors = load_file(_weights(checkpoint))
    name = "model.layers.4.block_sparse_moe.experts.7.w2.weight_scale"
    tensors[name][3, 0] = 255
    save_file(tensors, _weights(checkpoint))
    ids = ("--token-ids", "1,2")
    assert k3c("generate", model.package, "--weights", checkpoint, *ids) == 1
    assert name in (text := capsys.readouterr().err) and "K3-R002" in text
    engine = Engine(model.package, checkpoint, max_context=64, allow_nan_scales=True, num_threads=1)
    assert np.isnan(engine.logits(model.tokens[:40])).any(), "the NaN is kept, not read as a number"
    engine.close()


@pytest.mark.parametrize(
    ("typed", "meant"), [("cpus", "cpu"), ("GB300", "gb300"), ("mi355", "mi355x")]
)
def test_wrong_target_name(model: Model, k3c: K3c, capsys: Err, typed: str, meant: str) -> None:
    assert k3c("compile", model.checkpoint, "--target", typed) == 1
    assert f"did you mean {meant}?" in (text := capsys.readouterr().err) and "K3-T001" in text


def test_tp_that_does_not_divide_the_heads(
    model: Model, tmp_path: Path, k3c: K3c, capsys: Err
) -> None:
    out = tmp_path / "pkg"
    assert k3c("compile", model.checkpoint, "--target", "cpu", "--tp", 3, "--out", out) == 1
    text = capsys.readouterr().err
    assert "K3-P004" in text and "heads" in text
    assert list(tmp_path.iterdir()) == []


def test_a_package_of_another_schema_version(
    model: Model, tmp_path: Path, k3c: K3c, capsys: Err
) -> None:
    package = copy_package(model.package, tmp_path / "pkg")
    edit_manifest(package, schema=SCHEMA_VERSION + 1)
    for command in _commands(model, package, tmp_path):
        assert k3c(*command) == 1
        text = capsys.readouterr().err
        assert "K3-K004" in text and "schema" in text.lower()


def test_a_package_of_another_target(model: Model, tmp_path: Path, k3c: K3c, capsys: Err) -> None:
    package = copy_package(model.package, tmp_path / "pkg")
    gb300 = TargetRecord("gb300", "cuda", "sm_103a")
    reseal(package, lambda manifest: replace(manifest, target=gb300))
    command = ("generate", package, "--weights", model.checkpoint, "--token-ids", "1,2")
    assert k3c(*command, "--device", "cpu") == 1
    assert "gb300" in (text := capsys.readouterr().err) and "K3-K009" in text


def test_one_byte_of_any_file_changed(model: Model, tmp_path: Path, k3c: K3c, capsys: Err) -> None:
    """Every file of the package in turn; the manifest too."""
    package = copy_package(model.package, tmp_path / "pkg")
    files = sorted(p for p in package.rglob("*") if p.is_file())
    assert len(files) > 50
    for path in files:
        flip_byte(path, bits=1)
        with pytest.raises(K3Error, match=r"K3-K00[3-6]"):
            Engine(package, model.checkpoint)
        flip_byte(path, bits=1)
    flip_byte(package / "lib" / "x86-64-v3.so")
    for command in _commands(model, package, tmp_path):
        assert k3c(*command) == 1
        assert "x86-64-v3.so" in (text := capsys.readouterr().err) and "K3-K005" in text


def _commands(model: Model, package: Path, folder: Path) -> list[tuple[object, ...]]:
    """Every command that opens a package."""
    weights = ("--weights", model.checkpoint)
    return [
        ("inspect", package),
        ("verify", package),
        ("bench", package),
        ("generate", package, *weights, "--token-ids", "1,2"),
        ("logits", package, *weights, "--tokens", "1,2", "--out", folder / "logits.npy"),
    ]


def test_a_prompt_longer_than_the_context(
    model: Model, k3c: K3c, capsys: Err, tmp_path: Path
) -> None:
    ids = ",".join(["5"] * 17)
    command = ("generate", model.package, "--weights", model.checkpoint, "--token-ids", ids)
    assert k3c(*command, "--max-context", 17) == 1
    assert "at most 16 tokens" in (text := capsys.readouterr().err) and "K3-R003" in text
    assert k3c(*command, "--max-context", 18, "--max-tokens", 50) == 0
    assert len(capsys.readouterr().out.split()) == 1, "one token fits"
    np.save(tmp_path / "long.npy", np.full(4097, 5, np.int32))
    tokens = ("--tokens", f"@{tmp_path / 'long.npy'}", "--out", tmp_path / "logits.npy")
    assert k3c("logits", model.package, "--weights", model.checkpoint, *tokens) == 1
    assert "at most 4096 tokens" in (text := capsys.readouterr().err) and "K3-R003" in text


def test_token_ids_out_of_range(
    model: Model, engines: Engines, k3c: K3c, capsys: Err, tmp_path: Path
) -> None:
    command = ("generate", model.package, "--weights", model.checkpoint)
    assert k3c(*command, "--token-ids", "1,211") == 1
    assert "0..210" in (text := capsys.readouterr().err) and "K3-R003" in text
    out = tmp_path / "logits.npy"
    assert k3c("logits", *command[1:], "--tokens", "211", "--out", out) == 1
    assert "K3-R003" in capsys.readouterr().err and not out.exists()
    with pytest.raises(K3Error, match="K3-R003"):
        engines.of(model).generate([[3, -1]], SamplingParams(max_tokens=1))


def test_text_for_weights_without_a_tokenizer(model: Model, k3c: K3c, capsys: Err) -> None:
    command = ("generate", model.package, "--weights", model.checkpoint, "--prompt", "moon")
    assert k3c(*command) == 1
    assert "K3-R008" in capsys.readouterr().err


def test_weights_of_another_model(model: Model, models: Models, k3c: K3c, capsys: Err) -> None:
    other = models.root / "other"
    from k3compiler.reference.random_checkpoint import make_checkpoint
    from k3compiler.reference.tiny import tiny_config

    make_checkpoint(other, tiny_config("odd"))
    command = ("generate", model.package, "--weights", other, "--token-ids", "1")
    assert k3c(*command) == 1
    assert "K3-R001" in capsys.readouterr().err


def test_no_model_of_that_name(tmp_path: Path, k3c: K3c, capsys: Err) -> None:
    assert k3c("compile", "kimi-k4", "--target", "cpu", "--out", tmp_path / "pkg") == 1
    assert "kimi-k3" in (text := capsys.readouterr().err) and "K3-G006" in text


def test_a_config_that_contradicts_itself(
    model: Model, checkpoint: Path, tmp_path: Path, k3c: K3c, capsys: Err
) -> None:
    path = checkpoint / "config.json"
    keys = json.loads(path.read_text())
    text = keys.get("text_config", keys)
    layers = text["linear_attn_config"]
    layers["kda_layers"].append(layers["full_attn_layers"][0])
    path.write_text(json.dumps(keys))
    assert k3c("compile", checkpoint, "--target", "cpu", "--out", tmp_path / "pkg") == 1
    said = capsys.readouterr().err
    assert "K3-G003" in said and "kda_layers" in said
