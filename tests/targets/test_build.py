"""The build frame: workers, cache, progress, and errors that name op, layers and shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3compiler.errors import K3Error
from k3compiler.targets import backend as backend_module
from k3compiler.targets.backend import BuildRequest, backend_for
from k3compiler.targets.base import find_target
from k3compiler.targets.build import build_kernels
from k3compiler.targets.cache import CacheKeys

H200 = find_target("h200")


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend_module.BACKENDS, "cuda", "tests.targets.fake_backends:Fake")  # type: ignore[arg-type]


def request(text: str, symbol: str = "k", **schedule: int) -> BuildRequest:
    return BuildRequest(
        symbol, text, schedule, op="kda.output", layers=(0, 1, 2, 7), shape="heads=12"
    )


def test_kernels_come_back_in_order_and_from_several_workers(tmp_path: Path) -> None:
    wanted = [request(f"ok {i}", f"k{i}") for i in range(12)]
    seen: list[tuple[int, int]] = []
    built = build_kernels(
        wanted, H200, jobs=2, cache_folder=tmp_path, progress=lambda *done: seen.append(done)
    )
    assert [k.files["ptx"] for k in built.values()] == [r.tile_text.encode() for r in wanted]
    assert list(built) == [r.symbol for r in wanted]
    assert seen == [(i + 1, 12) for i in range(12)]


def test_the_cache_gives_the_same_kernel_and_starts_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_kernels([request("ok")], H200, cache_folder=tmp_path)
    monkeypatch.setattr("k3compiler.targets.build.Worker", None)
    assert build_kernels([request("ok")], H200, cache_folder=tmp_path) == first


def test_the_key_follows_text_schedule_tools_and_isa(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = CacheKeys(H200, backend_for(H200))
    base = keys.key(request("ok"))
    others = {
        keys.key(request("ok 2")),
        keys.key(request("ok", num_warps=8)),
        CacheKeys(find_target("gb300"), backend_for(H200)).key(request("ok")),
    }
    monkeypatch.setitem(backend_module.BACKENDS, "cuda", "tests.targets.fake_backends:Newer")  # type: ignore[arg-type]
    others.add(CacheKeys(H200, backend_for(H200)).key(request("ok")))
    assert len(others) == 4 and base not in others
    assert CacheKeys(find_target("h100"), backend_for(H200)).key(request("ok")) not in {base}


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_cache_file_is_built_anew(tmp_path: Path, damage: str) -> None:
    first = build_kernels([request("ok")], H200, cache_folder=tmp_path)
    (path,) = tmp_path.rglob("*.k3k")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes({"cut": bytes(data[:-5]), "flip": bytes(data), "empty": b""}[damage])
    again = build_kernels([request("ok")], H200, cache_folder=tmp_path)
    assert again["k"].files["ptx"] == b"ok"
    assert again["k"].files["pid"] != first["k"].files["pid"]
    assert build_kernels([request("ok")], H200, cache_folder=tmp_path) == again


@pytest.mark.parametrize(
    ("text", "code", "found"),
    [("abort", "K3-T005", "LLVM ERROR: no such register"), ("refuse", "K3-T002", "nonsense")],
)
def test_a_kernel_that_fails_is_named(tmp_path: Path, text: str, code: str, found: str) -> None:
    wanted = [request("ok", "a"), request(text, "b"), *(request("ok", f"c{i}") for i in range(8))]
    with pytest.raises(K3Error) as caught:
        build_kernels(wanted, H200, jobs=2, cache_folder=tmp_path)
    assert caught.value.code == code
    assert "kernel b (kda.output, layers 0-2,7, heads=12)" in caught.value.where
    assert found in caught.value.found


def test_a_bug_of_ours_is_no_user_error_but_named_too(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"kernel k \(kda\.output(.|\n)*KeyError: 'forgotten'"):
        build_kernels([request("bug")], H200, cache_folder=tmp_path)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(K3Error) as caught:
        build_kernels([request("ok")], H200, cache_folder=tmp_path / "file")
    assert caught.value.code == "K3-E004"
    assert "K3C_CACHE_DIR" in caught.value.hint
