"""A byte of a kernel changed and every digest patched: the package opens, and ``k3c verify`` still finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3compiler.package.reader import Package
from tests.e2e.models import Model, Models
from tests.e2e.packages import (
    code_offset,
    copy_package,
    flip_byte,
    reseal,
    run_k3c,
    runnable_levels,
)

pytestmark = [pytest.mark.t1, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(models: Models) -> Model:
    return models.tiny("spec")


def _first(package: Path, family: str) -> str:
    return next(k.symbol for k in Package.open(package).manifest.kernels if k.family == family)


def test_an_untouched_package_passes(model: Model) -> None:
    done = run_k3c("verify", model.package)
    assert done.returncode == 0 and "checks passed" in done.stdout


@pytest.mark.parametrize("level", runnable_levels())
def test_code_of_any_level(model: Model, tmp_path: Path, level: str) -> None:
    """The first instruction of a kernel becomes a return: it writes nothing."""
    package = copy_package(model.package, tmp_path / "pkg")
    symbol, name = _first(package, "rms_norm"), f"lib/{level}.so"
    data = (package / name).read_bytes()
    at = code_offset(package / name, symbol)
    flip_byte(package / name, at, data[at] ^ 0xC3)
    done = run_k3c("verify", package)
    assert done.returncode == 1 and "K3-K005" in done.stderr, "the digests alone see it"
    reseal(package)
    done = run_k3c("verify", package)
    assert done.returncode == 1 and "K3-K020" in done.stderr and symbol in done.stderr


def test_code_that_crashes(model: Model, tmp_path: Path) -> None:
    """An instruction that does not exist, in the level that runs here."""
    package = copy_package(model.package, tmp_path / "pkg")
    symbol, name = _first(package, "moe_down"), f"lib/{runnable_levels()[0]}.so"
    at = code_offset(package / name, symbol)
    flip_byte(package / name, at, (package / name).read_bytes()[at] ^ 0x06)
    reseal(package)
    done = run_k3c("verify", package)
    assert done.returncode == 1 and "K3-K020" in done.stderr and symbol in done.stderr


def test_a_constant_of_a_tile_program(model: Model, tmp_path: Path) -> None:
    """``--on cpu`` compiles what the package says its kernels are: here another bound of the decay."""
    package = copy_package(model.package, tmp_path / "pkg")
    symbol = _first(package, "kda_inputs")
    path = package / "kernels" / f"{symbol}.tile.mlir"
    at = path.read_bytes().index(b"-5.000000e+00")
    flip_byte(path, at + 1, ord("5") ^ ord("4"))
    reseal(package)
    done = run_k3c("verify", package, "--on", "cpu", "--kernel", symbol)
    assert done.returncode == 1 and "K3-K020" in done.stderr and symbol in done.stderr
