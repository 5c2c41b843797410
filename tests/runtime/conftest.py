"""A package whose kernels are a few lines of C, and weights to go with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.package import package_samples as samples

Floats = NDArray[np.float32]


class TensorTable:
    """A checkpoint in memory."""

    def __init__(self, tensors: dict[str, NDArray[Any]], dtypes: dict[str, str] | None = None):
        self.tensors, self.dtypes = tensors, dtypes or {}

    def names(self) -> list[str]:
        return sorted(self.tensors)

    def info(self, name: str) -> tuple[str, tuple[int, ...]]:
        return self.dtypes.get(name, "f32"), self.tensors[name].shape

    def read(self, name: str) -> NDArray[Any]:
        return self.tensors[name]


@pytest.fixture(scope="session")
def host_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The sample kernels as a shared object."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the sample kernels")
    out = tmp_path_factory.mktemp("host") / "kernels.so"
    source = Path(__file__).with_name("host_kernels.c")
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(out), str(source)],
        check=True,
        capture_output=True,
    )
    return out.read_bytes()


@pytest.fixture(scope="session")
def host_package(host_library: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample package for the cpu, with its library at the lowest level."""
    path = tmp_path_factory.mktemp("package") / "host"
    libraries = {"x86-64-v3": "lib/x86-64-v3.so"}
    samples.write_sample(path, {"lib/x86-64-v3.so": host_library}, libraries=libraries)
    return path


@pytest.fixture(scope="session")
def tables() -> tuple[Floats, Floats]:
    """Embedding and head of the sample model."""
    rng = np.random.default_rng(7)
    first, second = rng.normal(size=(2, samples.VOCAB, samples.HIDDEN)).astype(np.float32)
    return first, second


@pytest.fixture(scope="session")
def checkpoint(tables: tuple[Floats, Floats]) -> TensorTable:
    names = ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight")
    return TensorTable(dict(zip(names, tables, strict=True)))


@pytest.fixture(scope="session")
def expected_logits(tables: tuple[Floats, Floats]) -> Floats:
    """What the sample model answers to each token: ``[vocab, vocab]``."""
    return np.matmul(tables[0] * np.float32(1.5), tables[1].T, dtype=np.float32)
