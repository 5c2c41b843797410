"""The same model, twice, from cold caches, in other directories and with other hash seeds: the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.models import NANO
from tests.e2e.packages import ROOT, run_k3c

pytestmark = [pytest.mark.t1, pytest.mark.t2, pytest.mark.slow]


@pytest.mark.parametrize("target", ["cpu", "gb300", "mi355x"])
def test_two_cold_builds_and_a_cached_one(tmp_path: Path, target: str) -> None:
    """The second one from a copy of the checkpoint elsewhere, one kernel at a time."""
    copy = Path(shutil.copytree(NANO, tmp_path / "elsewhere" / "renamed"))
    first = _build(tmp_path / "first", NANO, target, cache=tmp_path / "one", jobs=2)
    second = _build(tmp_path / "second", copy, target, cache=tmp_path / "two", jobs=1)
    cached = _build(tmp_path / "third", NANO, target, cache=tmp_path / "one", jobs=2)
    assert _differing(first, second) == []
    assert _differing(first, cached) == []
    for text in (str(tmp_path), str(ROOT)):
        leaking = [name for name, data in first.items() if text.encode() in data]
        assert leaking == [], "a path of this machine is in the package"


def _build(out: Path, model: Path, target: str, *, cache: Path, jobs: int) -> dict[str, bytes]:
    """The files of a package, built by a process with a hash seed of its own."""
    environment = {
        "K3C_CACHE_DIR": str(cache),
        "K3C_JOBS": str(jobs),
        "PYTHONHASHSEED": str(len(out.name)),
    }
    done = run_k3c("compile", model, "--target", target, "--out", out, environment=environment)
    assert done.returncode == 0, done.stderr
    files = (path for path in out.rglob("*") if path.is_file())
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def _differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    return sorted(name for name in one | other if one.get(name) != other.get(name))
