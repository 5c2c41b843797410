"""Test tiers (style of the whole suite): a tier whose tool is absent is skipped with the reason.

``--expect t0,t1,t2`` names the tiers that must be able to run on this machine: there a missing tool
fails the tests instead of skipping them (CI passes it, so that a green run never hides a tier).
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


def _missing_mlir() -> str | None:
    return None if importlib.util.find_spec("torch_mlir") else "torch-mlir is not installed"


def _missing_toolchain() -> str | None:
    return None if importlib.util.find_spec("triton") else "triton is not installed"


def _missing_device() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "no GPU runtime: torch is not installed"
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA device on this machine"
    return None


_PROBES: dict[str, Callable[[], str | None]] = {
    "t0": lambda: None,
    "t1": _missing_mlir,
    "t2": _missing_toolchain,
    "t3": _missing_device,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expect",
        default="t0",
        metavar="TIERS",
        help="comma-separated tiers that must be able to run here: a missing tool is an error",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check ``--expect``; keep compiled kernels in pytest's own cache, not in the user's."""
    if "K3C_CACHE_DIR" not in os.environ:
        os.environ["K3C_CACHE_DIR"] = str(config.cache.mkdir("k3c-kernels"))
    unknown = _expected(config) - set(_PROBES)
    if unknown:
        raise pytest.UsageError(
            f"--expect: unknown tiers {sorted(unknown)}; known: {list(_PROBES)}"
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip (or fail, where the tier is expected) a test whose tool is absent."""
    for tier, probe in _PROBES.items():
        if item.get_closest_marker(tier) is None:
            continue
        reason = probe()
        if reason is None:
            continue
        if tier in _expected(item.config):
            pytest.fail(f"tier {tier} is expected on this machine, but {reason}", pytrace=False)
        pytest.skip(f"{tier}: {reason}")


def _expected(config: pytest.Config) -> set[str]:
    return {tier for tier in str(config.getoption("--expect")).split(",") if tier}


# -- .mlir files: every RUN line is a test, run in this process ---------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collects ``// RUN: k3c opt %s ... | filecheck %s`` lines of .mlir files."""
    if file_path.suffix != ".mlir":
        return None
    return MlirFile.from_parent(parent, path=file_path)


class MlirFile(pytest.File):
    """An .mlir file whose RUN lines say how it is to be run and checked."""

    def collect(self) -> Iterator[pytest.Item]:
        lines = self.path.read_text().splitlines()
        runs = [line.split("RUN:", 1)[1].strip() for line in lines if line.startswith("// RUN:")]
        assert runs, f"{self.path} has no RUN line"
        for number, run in enumerate(runs):
            item = RunLine.from_parent(self, name=f"run{number}")
            item.run = run
            item.add_marker("t1")
            yield item


class RunLine(pytest.Item):
    """One RUN line: ``k3c opt`` commands joined by pipes, ending in filecheck."""

    run: str

    def runtest(self) -> None:
        *commands, check = [shlex.split(part) for part in self.run.split("|")]
        assert check[0] == "filecheck", f"a RUN line ends in filecheck: {self.run}"
        text = self.path.read_text()
        for command in commands:
            assert command[:2] == ["k3c", "opt"], f"only k3c opt runs here: {command}"
            text = self._opt(command[2:], text)
        self._filecheck(check[1:], text)

    def _opt(self, words: list[str], text: str) -> str:
        from k3compiler.cli.opt import run_opt

        parser = argparse.ArgumentParser(exit_on_error=False)
        parser.add_argument("file")
        parser.add_argument("-p", "--pipeline", default="")
        parser.add_argument("--print-after", action="store_true")
        parser.add_argument("--split-input", action="store_true")
        parser.add_argument("--expect-error", action="store_true")
        options = vars(parser.parse_args(words))
        assert options.pop("file") in ("%s", "-"), "the file is %s, or - behind a pipe"
        dumped: list[str] = []
        with TemporaryDirectory() as directory:
            file = Path(directory) / self.path.name
            file.write_text(text)
            last = run_opt(file, dump=dumped.append, **options)
        return "".join([*dumped, last])

    def _filecheck(self, words: list[str], text: str) -> None:
        from filecheck.finput import FInput
        from filecheck.matcher import Matcher
        from filecheck.options import parse_argv_options
        from filecheck.parser import Parser

        options = parse_argv_options(["filecheck", str(self.path), *words[1:]])
        options.match_filename = str(self.path)
        said = io.StringIO()
        with redirect_stderr(said):
            checks = Parser.from_opts(options)
            code = Matcher(options, FInput(str(self.path), text), checks).run()
        if code:
            raise AssertionError(f"{said.getvalue()}\n--- output of: {self.run}\n{text}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:  # type: ignore[override]
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name}: {self.run}"
