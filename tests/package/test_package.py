"""Writing and opening a package: round trip, atomicity, tampering."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3compiler.errors import K3Error
from k3compiler.package.codec import canonical_json
from k3compiler.package.manifest import Manifest, Plan, TargetRecord, check_path
from k3compiler.package.reader import Package
from k3compiler.package.writer import PackageWriter
from tests.package import package_samples as samples


def tree(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def siblings(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir() if p != path)


def test_round_trip(tmp_path: Path) -> None:
    sealed = samples.write_sample(tmp_path / "pkg", {"kernels/a.tile.mlir": b"module {}"})
    package = Package.open(tmp_path / "pkg")
    assert package.manifest == Manifest.from_json(sealed.to_json())
    assert package.plan("decode") == samples.plan("decode")
    assert package.weights == samples.weights()
    assert package.read("kernels/a.tile.mlir") == b"module {}"
    assert package.manifest.config == samples.sample_config()
    assert siblings(tmp_path / "pkg") == []


def test_same_input_same_bytes(tmp_path: Path) -> None:
    samples.write_sample(tmp_path / "one", {"kernels/b": b"2", "kernels/a": b"1"})
    samples.write_sample(tmp_path / "two", {"kernels/a": b"1", "kernels/b": b"2"})
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_failed_build_leaves_the_former_package(tmp_path: Path) -> None:
    path = tmp_path / "pkg"
    samples.write_sample(path)
    before = tree(path)
    with pytest.raises(RuntimeError, match="kernel failed"), PackageWriter(path) as writer:
        writer.add_bytes("kernels/half", b"x")
        raise RuntimeError("kernel failed")
    assert tree(path) == before
    assert siblings(path) == []


def test_replaces_a_package_but_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "pkg"
    samples.write_sample(path, {"kernels/old": b"x"})
    samples.write_sample(path)
    assert "kernels/old" not in tree(path)
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("precious")
    with pytest.raises(K3Error, match="K3-K008"):
        samples.write_sample(home)
    assert (home / "thesis.txt").read_text() == "precious"


_HOLD = """
import sys, time
from k3compiler.package.writer import PackageWriter
with PackageWriter(sys.argv[1]) as writer:
    writer.add_bytes("kernels/half", b"x" * 1000)
    print("ready", flush=True)
    time.sleep(60)
"""


def test_two_builds_at_once_and_a_killed_build(tmp_path: Path) -> None:
    path = tmp_path / "pkg"
    command = [sys.executable, "-c", _HOLD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as build:
        assert build.stdout is not None
        assert build.stdout.readline() == "ready\n"
        with pytest.raises(K3Error, match="K3-K007"):
            samples.write_sample(path)
        build.kill()
    assert not path.exists(), "a killed build left a package"
    samples.write_sample(path)
    assert siblings(path) == []
    Package.open(path)


def test_killed_between_the_renames(tmp_path: Path) -> None:
    """The former package waits under .old; the next build puts it back before it starts."""
    path = tmp_path / "pkg"
    samples.write_sample(path)
    before = tree(path)
    path.rename(path.with_name(".pkg.old"))
    with pytest.raises(RuntimeError), PackageWriter(path):
        raise RuntimeError
    assert tree(path) == before


def test_no_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pkg"

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(K3Error, match="room on the disk"):
        samples.write_sample(path)
    assert not path.exists()
    assert siblings(path) == []


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [_flip, _truncate, Path.unlink])
@pytest.mark.parametrize("name", ["kernels/a.cubin", "plans/decode.json", "weights.json"])
def test_damaged_file_is_refused(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    samples.write_sample(tmp_path / "pkg", {"kernels/a.cubin": b"\0" * 100})
    damage(tmp_path / "pkg" / name)
    with pytest.raises(K3Error, match="K3-K005") as caught:
        Package.open(tmp_path / "pkg")
    assert name in caught.value.where


def test_every_manifest_byte_counts(tmp_path: Path) -> None:
    path = tmp_path / "pkg"
    samples.write_sample(path)
    whole = (path / "manifest.json").read_bytes()
    for at in range(0, len(whole), 37):
        changed = bytearray(whole)
        changed[at] ^= 2
        (path / "manifest.json").write_bytes(changed)
        with pytest.raises(K3Error, match=r"K3-K00[3-6]"):
            Package.open(path)


def test_foreign_and_linked_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pkg"
    samples.write_sample(path, {"kernels/a": b"1"})
    (path / "kernels" / "b").write_bytes(b"2")
    with pytest.raises(K3Error, match="foreign"):
        Package.open(path)
    (path / "kernels" / "b").unlink()
    (path / "kernels" / "a").unlink()
    (tmp_path / "outside").write_bytes(b"1")
    (path / "kernels" / "a").symlink_to(tmp_path / "outside")
    with pytest.raises(K3Error, match="symbolic link"):
        Package.open(path)


def _rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((path / "manifest.json").read_text())
    change(data)
    (path / "manifest.json").write_bytes(canonical_json(data))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda d: d.update(schema=1), "K3-K004"),
        (lambda d: d.pop("schema"), "K3-K003"),
        (lambda d: d.pop("kernels"), "K3-K003"),
        (lambda d: d.update(surprise=1), "K3-K003"),
        (lambda d: d["target"].update(kind="tpu"), "K3-K003"),
        (lambda d: d.update(weights="../weights.json"), "K3-K006"),
        (lambda d: d["files"].update({"/etc/passwd": "0"}), "K3-K006"),
        (lambda d: d.update(dtype="bfloat16"), "K3-K005"),
    ],
)
def test_edited_manifest_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], code: str
) -> None:
    samples.write_sample(tmp_path / "pkg")
    _rewrite(tmp_path / "pkg", change)
    with pytest.raises(K3Error, match=code):
        Package.open(tmp_path / "pkg")


@pytest.mark.parametrize("path", ["", ".", "..", "a/../b", "/a", "a//b", "a/", "a\\b", "./a"])
def test_paths_stay_inside(path: str) -> None:
    with pytest.raises(K3Error, match="K3-K006"):
        check_path(path, "test")


def test_not_a_package(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(K3Error, match="K3-K003"):
            Package.open(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("launch", "nothing"),
        ("args", ["tokens"]),
        ("args", ["tokens", "w:other", "x", "T", "f:1"]),
        ("args", ["tokens", "w:table", "x", "T +", "f:1"]),
        ("grid", ["T", "1"]),
        ("stream", "zero"),
    ],
)
def test_plan_that_does_not_fit_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    data = samples.plan("prefill").to_json()
    data["steps"][0][key] = value
    with pytest.raises(K3Error, match=r"K3-K00[13]"), PackageWriter(tmp_path / "pkg") as writer:
        writer.add_json("plans/prefill.json", data)
        writer.add_plan(samples.plan("decode"))
        writer.add_weights(samples.weights())
        writer.commit(samples.manifest())
        Package.open(tmp_path / "pkg")


def test_plan_json_needs_a_step_kind() -> None:
    data = samples.plan("decode").to_json()
    data["steps"].append({"op": "k3.nothing", "args": []})
    with pytest.raises(K3Error, match="steps\\[3\\]"):
        Plan.from_json(data)


def test_target_is_part_of_the_manifest(tmp_path: Path) -> None:
    target = TargetRecord("gb300", "cuda", "sm_103a")
    samples.write_sample(tmp_path / "pkg", target=target)
    assert Package.open(tmp_path / "pkg").manifest.target == target
