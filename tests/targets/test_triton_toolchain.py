"""Triton's version, shared memory limits, and bytes that do not depend on where they were made."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

from k3compiler.errors import K3Error
from k3compiler.ir.context import print_module
from k3compiler.targets.backend import BuildRequest, backend_for
from k3compiler.targets.base import find_target
from k3compiler.targets.triton_ir.toolchain import triton_version
from tests.targets.every_op import build, product

BODY = product("bf16", "bf16", 64, 32)


def request(**schedule: int) -> BuildRequest:
    text = print_module(build(BODY), locations=True)
    chosen = {"num_warps": 4, "num_stages": 2, **schedule}
    return BuildRequest("k", text, chosen, op="k3.linear", layers=(3,), shape="N=32")


@pytest.mark.parametrize(
    ("version", "shown"), [("3.10.0", "3.10.0"), ("4.0.1", "4.0.1"), (None, "none")]
)
def test_another_triton_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, version: str | None, shown: str
) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.raises(K3Error) as caught:
        triton_version()
    assert caught.value.code == "K3-T003"
    assert caught.value.found == shown and "triton 3.9.x" in caught.value.expected


@pytest.mark.t2
@pytest.mark.parametrize("target", ["h200", "gb300", "mi355x"])
def test_bytes_do_not_depend_on_the_directory(tmp_path: Path, target: str) -> None:
    backend = backend_for(find_target(target))
    here = Path.cwd()
    first = backend.compile(request())
    try:
        os.chdir(tmp_path)
        second = backend.compile(request())
    finally:
        os.chdir(here)
    assert first == second


@pytest.mark.t2
@pytest.mark.parametrize(("target", "limit"), [("h200", 227), ("mi300x", 64)])
def test_a_kernel_over_the_shared_memory_limit_is_refused(target: str, limit: int) -> None:
    text = print_module(build(product("f32", "tf32", 256, 256)), locations=True)
    request = BuildRequest(
        "k", text, {"num_warps": 8, "num_stages": 5}, op="k3.linear", layers=(3,), shape="N=256"
    )
    with pytest.raises(K3Error) as caught:
        backend_for(find_target(target)).compile(request)
    assert caught.value.code == "K3-T004"
    assert caught.value.where == "kernel k (k3.linear, layers 3, N=256)"
    assert f"{limit * 1024} bytes" in caught.value.expected and target in caught.value.expected


@pytest.mark.t2
def test_a_kernel_that_triton_refuses_is_named() -> None:
    with pytest.raises(K3Error) as caught:
        backend_for(find_target("h200")).compile(request(num_warps=3))
    assert caught.value.code == "K3-T002"
    assert "kernel k (k3.linear, layers 3, N=32)" in caught.value.where
