"""``k3c verify --on emulator``: a package of two real code objects, whole and sampled, right and wrong."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3compiler.cli import main as cli
from k3compiler.package.manifest import KernelRecord, Plan, TargetRecord, WeightMap
from k3compiler.package.writer import PackageWriter
from tests.check.emulator.code_objects import needs_emulator
from tests.package import package_samples as samples
from tests.targets.amd.emulate import record_of

pytestmark = pytest.mark.t2
NORM: dict[str, Any] = {
    "in_cols": 96, "in_offset": 0, "cols": 96, "block": 128, "eps": 1e-5, "dtype": "f32",
}  # fmt: skip


def k3c(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def moe() -> dict[str, Any]:
    """A product that FlyDSL builds, small."""
    from tests.targets.amd.flydsl_kernels import params_of

    return params_of("moe_down", block_rows=16, inner=256, width=256)


def built(
    family: str, params: dict[str, Any], eps: float | None = None
) -> tuple[KernelRecord, bytes]:
    """A record as the driver writes it; with ``eps`` the binary is built for another one than the record says."""
    if family == "moe_down":
        from tests.targets.amd import flydsl_kernels as fly

        binary = fly.build(family, params)
        record, code = fly.record_of(family, params, binary), binary.files["hsaco"]
    else:
        wrong = {} if eps is None else {"eps": eps}
        record, code = record_of(family, {**params, **wrong}, "mi355x")
    return replace(record, params=params, files={"hsaco": f"kernels/{family}.hsaco"}), code


def write_package(path: Path, made: list[tuple[KernelRecord, bytes]]) -> None:
    with PackageWriter(path) as writer:
        for phase in ("prefill", "decode"):
            writer.add_plan(Plan(phase, (), (), (), (), ()))
        writer.add_weights(WeightMap(()))
        for record, code in made:
            writer.add_bytes(record.files["hsaco"], code)
        target = TargetRecord("mi355x", "hip", "gfx950")
        writer.commit(samples.manifest(kernels=tuple(r for r, _ in made), target=target))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_emulator()
    path = tmp_path_factory.mktemp("emulated") / "pkg"
    made = [built("rms_norm", NORM)]
    if importlib.util.find_spec("flydsl") is not None:
        made.append(built("moe_down", moe()))
    write_package(path, made)
    return path


@pytest.mark.parametrize("sampled", [[], ["--programs", "3"]], ids=["whole", "sampled"])
def test_every_kernel_has_a_row(
    package: Path, sampled: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert k3c("verify", str(package), "--on", "emulator", "--json", *sampled) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows and all(row["passed"] for row in rows)
    for row in rows:
        assert row["vgprs"] > 0 and row["spills"] == 0 and row["instructions"]["memory"] > 0
    products = [row for row in rows if row["kernel"] == "moe_down"]
    assert all(row["instructions"]["matrix"] and row["lds_bytes"] == 16384 for row in products)


def test_a_wrong_kernel_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_emulator()
    write_package(tmp_path / "pkg", [built("rms_norm", NORM, eps=3.0)])
    assert k3c("verify", str(tmp_path / "pkg"), "--on", "emulator") == 1
    out, err = capsys.readouterr()
    assert "rms_norm" in out and "NO" in out and "K3-K020" in err


def test_a_sample_that_wrote_nothing_is_no_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_emulator()
    record, code = built("rms_norm", NORM)
    write_package(tmp_path / "pkg", [(replace(record, grid=("T*0", "1", "1")), code)])
    assert k3c("verify", str(tmp_path / "pkg"), "--on", "emulator", "--programs", "2") == 1
    assert "wrote nothing" in capsys.readouterr().out


def test_other_packages_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples.write_sample(tmp_path / "pkg", {"kernels/all.so": b""})
    assert k3c("verify", str(tmp_path / "pkg"), "--on", "emulator") == 1
    assert "a package for an AMD target" in capsys.readouterr().err


def test_without_a_checkout_it_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from k3compiler.check.emulator.alu import load_alu

    load_alu.cache_clear()
    monkeypatch.delenv("TINYGRAD_SRC", raising=False)
    write_package(tmp_path / "pkg", [built("rms_norm", NORM)])
    assert k3c("verify", str(tmp_path / "pkg"), "--on", "emulator") == 1
    assert "K3-E005" in capsys.readouterr().err
    load_alu.cache_clear()
