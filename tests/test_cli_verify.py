"""``k3c verify --on cpu`` on a package that holds one tile program, right and tampered with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from k3compiler.cli import main as cli
from k3compiler.package.manifest import (
    ArgRecord,
    KernelRecord,
    Manifest,
    Plan,
    TargetRecord,
    WeightMap,
    model_digest,
)
from k3compiler.package.writer import PackageWriter
from tests.package import package_samples as samples

pytestmark = pytest.mark.t1
PARAMS = {
    "in_cols": 96, "in_offset": 0, "cols": 96, "block": 128, "eps": 1e-5, "dtype": "f32",
}  # fmt: skip


def k3c(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def _access(text: str) -> Literal["r", "w", "rw"]:
    assert text in ("r", "w", "rw")
    return text


def write_package(path: Path, *, find: str = "", put: str = "") -> None:
    """A gb300 package of one RMSNorm kernel; ``find`` in its tile program is replaced by ``put``."""
    from k3compiler.ir import print_module
    from k3compiler.ir.tile_program import describe
    from k3compiler.kernels.base import build_program

    module = build_program("rms_norm", PARAMS, symbol="rms_norm")
    info = describe(module)
    text = print_module(module)
    assert find in text
    model = samples.sample_config().to_dict()
    args = tuple(
        ArgRecord(a.name, "scalar", a.dtype)
        if a.shape is None
        else ArgRecord(a.name, "buffer", a.dtype, a.shape, access=_access(a.access))
        for a in info.arguments
    )
    with PackageWriter(path) as writer:
        tile = writer.add_text(
            "kernels/rms_norm.tile.mlir", text.replace(find, put) if find else text
        )
        kernel = KernelRecord(
            "rms_norm",
            "rms_norm",
            "k3.rms_norm",
            args,
            info.grid,
            params=PARAMS,
            files={"tile": tile},
        )
        plans = {
            phase: writer.add_plan(Plan(phase, (), (), (), (), ()))
            for phase in ("prefill", "decode")
        }
        writer.add_weights(WeightMap(()))
        target = TargetRecord("gb300", "cuda", "sm_103a")
        writer.commit(
            Manifest(
                "0.1.0", model, model_digest(model), target, "float32", "a16w4", (kernel,), plans
            )
        )


def test_tile_programs_of_a_foreign_package_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_package(tmp_path / "pkg")
    assert k3c("verify", str(tmp_path / "pkg"), "--on", "cpu", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["kernel"] == "rms_norm" and row["passed"] and row["error"] < row["tolerance"]


def test_a_wrong_constant_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_package(tmp_path / "pkg", find="9.600000e+01", put="9.500000e+01")
    assert k3c("verify", str(tmp_path / "pkg"), "--on", "cpu", "--seed", "3") == 1
    shown = capsys.readouterr()
    assert "K3-K020" in shown.err and "--seed 3 --kernel rms_norm" in shown.err
    assert shown.out.split()[-2] == "NO"


def test_a_kernel_name_that_fits_none_is_a_usage_error(tmp_path: Path) -> None:
    write_package(tmp_path / "pkg")
    assert k3c("verify", str(tmp_path / "pkg"), "--on", "cpu", "--kernel", "norm") == 0
    assert k3c("verify", str(tmp_path / "pkg"), "--on", "cpu", "--kernel", "nothing") == 2
