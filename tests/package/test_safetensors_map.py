"""The mapped reader against the safetensors package, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from k3compiler.errors import K3Error
from k3compiler.package.safetensors_map import CheckpointFiles


def sample() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        "a": rng.standard_normal((3, 5)).astype(np.float32),
        "b": rng.standard_normal((4, 2)).astype(ml_dtypes.bfloat16),
        "c": rng.integers(0, 256, (7,), dtype=np.uint8),
        "empty": np.zeros((0, 4), np.float32),
    }


def test_single_file_reads_what_safetensors_wrote(tmp_path: Path) -> None:
    tensors = sample()
    save_file(tensors, tmp_path / "model.safetensors")
    files = CheckpointFiles(tmp_path)
    assert files.names() == sorted(tensors)
    for name, want in tensors.items():
        got = files.read(name)
        assert got.dtype == want.dtype and got.tobytes() == want.tobytes()
    assert files.info("b") == ("bf16", (4, 2))
    assert files.info("c") == ("i8", (7,))
    assert not files.read("a").flags.writeable
    assert files.total_bytes == sum(t.nbytes for t in tensors.values())


def write_shards(directory: Path) -> None:
    tensors = sample()
    save_file({"a": tensors["a"]}, directory / "model-1.safetensors")
    save_file({"b": tensors["b"]}, directory / "model-2.safetensors")
    table = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    write_shards(tmp_path)
    files = CheckpointFiles(tmp_path)
    assert files.names() == ["a", "b"]
    assert files.read("b").tobytes() == sample()["b"].tobytes()


def refused(directory: Path) -> str:
    with pytest.raises(K3Error) as caught:
        CheckpointFiles(directory)
    assert caught.value.code == "K3-G005"
    return str(caught.value)


def test_missing_shard(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    assert "model-2.safetensors" in refused(tmp_path)


def test_missing_index(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert "no index file" in refused(tmp_path)


def test_index_that_names_a_tensor_no_shard_holds(tmp_path: Path) -> None:
    write_shards(tmp_path)
    table = {"a": "model-1.safetensors", "b": "model-2.safetensors", "z": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    assert "in no shard" in refused(tmp_path)


@pytest.mark.parametrize("table", ["[1]", '{"weight_map": 3}', '{"weight_map": {"a": "../x"}}'])
def test_foreign_index(tmp_path: Path, table: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(table)
    assert "model.safetensors.index.json" in refused(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 40, -1])
def test_truncated_file(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file(sample(), path)
    path.write_bytes(path.read_bytes()[:keep])
    assert "model.safetensors" in refused(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"\x00" * 64,
        b"PK\x03\x04" * 20,
        (2).to_bytes(8, "little") + b"[]",
        (60).to_bytes(8, "little")
        + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}      '
        + b"0000",
        (60).to_bytes(8, "little")
        + b'{"a":{"dtype":"Q32","shape":[1],"data_offsets":[0,4]}}      '
        + b"0000",
    ],
    ids=["zeros", "zip", "list", "extent", "dtype"],
)
def test_foreign_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in refused(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    assert "no safetensors file" in refused(tmp_path)
    assert "no such directory" in refused(tmp_path / "nowhere")


def test_reading_an_absent_tensor(tmp_path: Path) -> None:
    save_file(sample(), tmp_path / "model.safetensors")
    with pytest.raises(K3Error, match="tensor nope"):
        CheckpointFiles(tmp_path).read("nope")
