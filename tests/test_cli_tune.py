"""``k3c tune``: one step at a time, and inputs of another step refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3compiler.package.codec import encode
from k3compiler.package.tuning import Measurement
from tests.test_cli import k3c

EMPTY = Measurement("h200", "digest", {}, ())


@pytest.mark.parametrize("flags", [(), ("--prepare", "--measure"), ("--measure",)])
def test_one_step_and_a_place_for_its_result(flags: tuple[str, ...]) -> None:
    assert k3c("tune", "somewhere", *flags) == 2


@pytest.mark.parametrize("step", ["--measure", "--apply"])
def test_another_steps_input_is_refused(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "input").mkdir()
    given = tmp_path / "input"
    if step == "--apply":
        given = tmp_path / "input.json"
        given.write_text("[]")
    assert k3c("tune", str(given), step, "-o", str(tmp_path / "out")) == 1
    assert "K3-K0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_applying_a_measurement_without_winners_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, table = tmp_path / "m.json", tmp_path / "table.json"
    given.write_text(json.dumps(encode(EMPTY)))
    assert k3c("tune", str(given), "--apply", "-o", str(table)) == 0
    assert "0 of 0 kernels" in capsys.readouterr().out and not table.exists()
