"""The command line: help, exit codes, suggestions, reproducers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer

from k3compiler import __version__
from k3compiler.cli import main as cli
from k3compiler.cli.compile import _default_out
from k3compiler.cli.values import parse_ids, parse_sizes
from k3compiler.errors import CATALOGUE, K3Error
from k3compiler.targets.base import TARGETS, find_target
from tests.package import package_samples as samples

ROOT = Path(__file__).parent.parent


def k3c(*arguments: str) -> int:
    """Exit code of one command line, in this process."""
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def test_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert k3c("--help") == 0
    listed = [
        line.split()[0]
        for line in capsys.readouterr().out.split("Commands:")[1].splitlines()
        if line
    ]
    assert listed[: len(cli.COMMANDS)] == list(cli.COMMANDS)


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_subcommand_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert k3c(name, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: k3c {name}")
    assert (cli.COMMANDS[name].__doc__ or "?") in " ".join(text.split())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert k3c("--version") == 0
    assert capsys.readouterr().out == f"k3c {__version__}\n"


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    probe = (
        "import sys\nfrom k3compiler.cli import main\n"
        "try:\n    main.main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'torch', 'torch_mlir', 'triton', 'rich', 'ml_dtypes', 'safetensors'}\n"
        "sys.stderr.write(' '.join(sorted(heavy & set(sys.modules))))"
    )
    seconds: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True
        )
        seconds.append(time.perf_counter() - started)
        assert done.stderr == ""
    assert min(seconds) < 1.0  # about 0.1 s alone; this machine may be busy


RUNTIME_COMMANDS = ["inspect", "verify", "generate", "logits", "targets", "explain"]


@pytest.mark.parametrize("name", RUNTIME_COMMANDS)
def test_runtime_commands_import_no_compiler(name: str, tmp_path: Path) -> None:
    """A bad package path is met only after the command's own imports."""
    extra = {
        "generate": ["--weights", ".", "--token-ids", "1"],
        "logits": ["--weights", ".", "--tokens", "1", "--out", str(tmp_path / "x.npy")],
        "targets": [],
        "explain": [],
    }
    subject = [] if name in ("targets", "explain") else [str(tmp_path)]
    probe = (
        "import sys\nfrom k3compiler.cli import main\n"
        f"try:\n    main.main({[name, *subject, *extra.get(name, [])]!r})\n"
        "except SystemExit as leaving: code = leaving.code\n"
        "heavy = {'torch', 'torch_mlir', 'triton', 'mlx'} & set(sys.modules)\n"
        "assert not heavy, heavy\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if not subject else 1), done.stderr
    assert not subject or "K3-K003" in done.stderr


def test_unknown_target_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert k3c("compile", "kimi-k3", "--target", "gb200") == 1
    text = capsys.readouterr().err
    assert "K3-T001" in text and "did you mean b200?" in text and "k3c explain K3-T001" in text


@pytest.mark.parametrize(
    ("typed", "meant"), [("GB300", "gb300"), ("mi355", "mi355x"), ("h20", "h200"), ("CPU", "cpu")]
)
def test_nearest_target(typed: str, meant: str) -> None:
    with pytest.raises(K3Error, match="K3-T001") as refused:
        find_target(typed)
    assert meant in refused.value.hint


def test_targets_prints_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert k3c("targets") == 0
    lines = capsys.readouterr().out.splitlines()
    for spec in TARGETS.values():
        (line,) = [line for line in lines if line.split()[:1] == [spec.name]]
        assert spec.isa in line and spec.verified in line


def test_targets_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert k3c("targets", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    limits = {row["name"]: row["shared_limit_bytes"] for row in rows}
    assert limits["h200"] == 232448 and limits["mi300x"] == 65536 and limits["mi355x"] == 163840


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert k3c("explain", "k3-t001") == 0
    assert capsys.readouterr().out.startswith(
        "K3-T001 (target and toolchain): no target of that name"
    )


def test_explain_knows_every_code(capsys: pytest.CaptureFixture[str]) -> None:
    for code in CATALOGUE:
        assert k3c("explain", code) == 0
        assert CATALOGUE[code].explanation in capsys.readouterr().out
    assert k3c("explain") == 0
    assert capsys.readouterr().out.count("K3-") >= len(CATALOGUE)


def test_explain_of_an_unknown_code_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert k3c("explain", "K3-T0001") == 2
    assert "did you mean K3-T001?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["compile", "kimi-k3"],
        ["compile", "kimi-k3", "--target", "cpu", "--tp", "0"],
        ["compile", "kimi-k3", "--target", "cpu", "--dtype", "float16"],
        ["verify", "pkg", "--on", "gpu"],
        ["generate", "pkg", "--weights", "."],
        ["generate", "pkg", "--weights", ".", "--prompt", "a", "--top-p", "1.5"],
        ["logits", "pkg", "--weights", ".", "--tokens", "1,x", "--out", "o.npy"],
        ["logits", "pkg", "--weights", ".", "--tokens", "1,2", "--chunks", "0", "--out", "o.npy"],
    ],
)
def test_usage_errors_exit_2(arguments: list[str]) -> None:
    assert k3c(*arguments) == 2


def test_a_bug_exits_70_with_a_reproducer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("K3C_DUMP_DIR", str(tmp_path / "dumps"))

    def broken(_code: str) -> K3Error:
        raise ZeroDivisionError("seven is out of sorts")

    monkeypatch.setattr("k3compiler.targets.base.find_target", broken)
    assert k3c("compile", "kimi-k3", "--target", "h200") == 70
    text = capsys.readouterr().err
    (path,) = (tmp_path / "dumps").glob("k3c-bug-*.json")
    assert str(path) in text and "seven is out of sorts" in text
    report = json.loads(path.read_text())
    assert report["command"] == ["k3c", "compile", "kimi-k3", "--target", "h200"]
    assert report["version"] == __version__
    assert report["knobs"]["K3C_DUMP_DIR"] == str(tmp_path / "dumps")
    assert any("ZeroDivisionError" in line for line in report["traceback"])


def test_a_full_disk_is_a_catalogued_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_name: str) -> None:
        raise OSError(28, "No space left on device", "out.npy")

    monkeypatch.setattr("k3compiler.targets.base.find_target", full)
    assert k3c("compile", "kimi-k3", "--target", "h200") == 1
    text = capsys.readouterr().err
    assert "K3-E003" in text and "out.npy" in text


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("k3compiler.cli.extras.EXTRAS", {"compile": ("numpy", "no_such_thing")})
    assert k3c("compile", "kimi-k3", "--target", "cpu") == 1
    text = capsys.readouterr().err
    assert "K3-E002" in text and "not installed: no_such_thing" in text
    assert "pip install 'k3compiler[compile]'" in text


def test_ids_from_text_and_file(tmp_path: Path) -> None:
    assert parse_ids("3, 1,2", option="--tokens") == [3, 1, 2]
    assert parse_sizes("20,1", option="--chunks") == [20, 1]
    np.save(tmp_path / "ids.npy", np.array([5, 6], np.int32))
    assert parse_ids(f"@{tmp_path / 'ids.npy'}", option="--tokens") == [5, 6]
    np.save(tmp_path / "bad.npy", np.zeros((2, 2)))
    with pytest.raises(typer.BadParameter, match="not a row of integers"):
        parse_ids(f"@{tmp_path / 'bad.npy'}", option="--tokens")
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(typer.BadParameter, match=r"not an \.npy file"):
        parse_ids(f"@{tmp_path / 'text.npy'}", option="--tokens")


@pytest.mark.parametrize(
    ("model", "tp", "name"),
    [
        ("kimi-k3", 8, "kimi-k3-gb300-tp8"),
        ("examples/k3-nano", 1, "k3-nano-gb300"),
        ("some/where/config.json", 1, "where-gb300"),
    ],
)
def test_default_output_directory(model: str, tp: int, name: str) -> None:
    assert _default_out(model, "gb300", tp) == Path(name)


def test_inspect_prints_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples.write_sample(tmp_path / "pkg")
    assert k3c("inspect", str(tmp_path / "pkg"), "--tokens", "32") == 0
    text = capsys.readouterr().out
    assert "prefill: 2 steps" in text and "decode: 3 steps" in text and "at 32 tokens" in text
    rows = [line.split()[:2] for line in text.splitlines()]
    assert rows.count(["embed", "k3.embed"]) == 2 and rows.count(["head", "k3.head"]) == 2


def test_inspect_in_brief(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k3compiler.cli.inspect.BRIEF_ROWS", 1)
    samples.write_sample(tmp_path / "pkg")
    assert k3c("inspect", str(tmp_path / "pkg"), "--brief") == 0
    text = capsys.readouterr().out
    assert "embed" in text and "head" not in text
    assert "and 1 more kernels" in text and "and 2 more kernels" in text
    assert "floor" not in text and "launches" in text


def test_inspect_as_json_and_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples.write_sample(tmp_path / "pkg")
    page = tmp_path / "page.html"
    assert k3c("inspect", str(tmp_path / "pkg"), "--json", "--html", str(page)) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"] == {"name": "cpu", "kind": "cpu", "isa": "x86-64"}
    assert [row["symbol"] for row in report["phases"]["decode"]["kernels"]] == [
        "feed",
        "embed",
        "head",
    ]
    assert page.read_text().startswith("<!doctype html>")


def test_inspect_refuses_a_changed_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples.write_sample(tmp_path / "pkg")
    with (tmp_path / "pkg" / "weights.json").open("a") as file:
        file.write(" ")
    assert k3c("inspect", str(tmp_path / "pkg")) == 1
    assert "K3-K005" in capsys.readouterr().err


def test_logits_refuses_a_package_of_another_dtype(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples.write_sample(tmp_path / "pkg")
    out = tmp_path / "out.npy"
    command = ["logits", str(tmp_path / "pkg"), "--weights", str(tmp_path), "--tokens", "1"]
    assert k3c(*command, "--dtype", "bfloat16", "--out", str(out)) == 1
    assert "K3-K021" in capsys.readouterr().err and not out.exists()


def test_a_signal_unwinds_and_exits_as_a_shell_expects(tmp_path: Path) -> None:
    probe = (
        "import sys, time\nfrom k3compiler.cli import main\nimport k3compiler.targets.base as base\n"
        "def wait(name):\n    try:\n        print('ready', flush=True)\n        time.sleep(60)\n"
        f"    finally:\n        open({str(tmp_path / 'cleaned')!r}, 'w').close()\n"
        "base.find_target = wait\nmain.main(['compile', 'x', '--target', 'cpu'])"
    )
    with subprocess.Popen([sys.executable, "-c", probe], cwd=ROOT, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        child.terminate()
        assert child.wait(timeout=20) == 128 + 15
    assert (tmp_path / "cleaned").exists()


def test_a_closed_pipe_is_no_bug() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "k3compiler.cli.main", "targets"],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
