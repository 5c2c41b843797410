"""Builds that fail, meet another, or are killed: no half package, and the next build works."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3compiler.package.reader import Package
from tests.e2e.models import Model, Models
from tests.e2e.packages import ROOT, run_k3c

pytestmark = [pytest.mark.t1, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(models: Models) -> Model:
    return models.tiny("spec")


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start_build(model: Model) -> Iterator[Start]:
    """Starts ``k3c compile`` into a directory; whatever still runs at the end is stopped."""
    started: list[subprocess.Popen[bytes]] = []

    def start(out: Path, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "k3compiler.cli.main", "compile", str(model.checkpoint)]
        process = subprocess.Popen(
            [*command, "--target", "cpu", "--out", str(out)],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def _wait_for(condition: Callable[[], object], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def _compile(model: Model, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    arguments = ("compile", model.checkpoint, "--target", "cpu", "--out", out)
    return run_k3c(*arguments, environment=environment)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_builds_into_one_directory(model: Model, start_build: Start, tmp_path: Path) -> None:
    out = tmp_path / "pkg"
    first = start_build(out)
    _wait_for((tmp_path / ".pkg.partial").exists, "the first build to begin")
    first.send_signal(signal.SIGSTOP)
    second = _compile(model, out)
    assert second.returncode == 1 and "K3-K007" in second.stderr
    first.send_signal(signal.SIGCONT)
    assert first.wait(timeout=120) == 0
    Package.open(out)
    assert _names(tmp_path) == ["pkg"]


def test_a_killed_build_leaves_no_half_package(
    model: Model, start_build: Start, tmp_path: Path
) -> None:
    """SIGKILL while workers compile: they end too; the former package stays; the next build works."""
    cache = tmp_path / "cache"
    out = Path(shutil.copytree(model.package, tmp_path / "out" / "pkg"))
    before = Package.open(out).manifest.digest
    build = start_build(out, K3C_CACHE_DIR=str(cache))
    _wait_for(lambda: list(cache.rglob("*.k3k")), "the first kernel")
    workers = _children(build.pid)
    assert workers
    build.kill()
    build.wait()
    assert Package.open(out).manifest.digest == before
    _wait_for(lambda: not any(_is_running(pid) for pid in workers), "the workers' end", 60)
    again = _compile(model, out)
    assert again.returncode == 0, again.stderr
    assert Package.open(out).manifest.digest == before
    assert _names(out.parent) == ["pkg"]


def test_a_build_killed_at_any_time_is_whole_or_absent(
    model: Model, start_build: Start, tmp_path: Path
) -> None:
    """Ten kills, from the first file on to the last rename."""
    out = tmp_path / "pkg"
    for delay in range(10):
        build = start_build(out)
        _wait_for((tmp_path / ".pkg.partial").exists, "the build to begin")
        time.sleep(delay * 0.3)
        build.kill()
        build.wait()
        if out.exists():
            assert Package.open(out).manifest.digest == Package.open(model.package).manifest.digest
            shutil.rmtree(out)
    assert _compile(model, out).returncode == 0
    assert _names(tmp_path) == ["pkg"]


def test_a_terminated_build_tidies_up(start_build: Start, tmp_path: Path) -> None:
    build = start_build(tmp_path / "out" / "pkg", K3C_CACHE_DIR=str(tmp_path / "cache"))
    _wait_for(lambda: list(tmp_path.rglob("*.k3k")), "the first kernel")
    build.terminate()
    assert build.wait(timeout=60) == 128 + signal.SIGTERM
    assert _names(tmp_path / "out") == []


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(n) for t in tasks.iterdir() for n in (t / "children").read_text().split()]


def _is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_files_that_may_not_grow(model: Model, tmp_path: Path) -> None:
    """A limit on file sizes: refused by code, nothing left behind."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    arguments = ("compile", model.checkpoint, "--target", "cpu", "--out", tmp_path / "out" / "pkg")
    build = run_k3c(*arguments, preexec_fn=limit)
    assert build.returncode == 1
    assert "K3-K008" in build.stderr and "File too large" in build.stderr
    assert _names(tmp_path / "out") == []


def test_no_disk_space(model: Model, tmp_path: Path) -> None:
    """On a tmpfs of 300 kB, in a mount namespace of its own; first the package, then the cache is there."""
    script = (
        'mount -t tmpfs -o size=300k tmpfs "$1" && cd "$2" && shift 2 && "$@"; code=$?\n'
        'ls -A "$OUT_FOLDER" >&2; exit $code'
    )
    full = tmp_path / "full"
    full.mkdir()
    enter = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    probe = [*enter, "sh", "-c", 'mount -t tmpfs -o size=300k tmpfs "$1"', "sh", str(full)]
    if shutil.which("unshare") is None or subprocess.run(probe, check=False).returncode:
        pytest.skip("no mount namespaces here")
    k3c = [sys.executable, "-m", "k3compiler.cli.main"]
    build = [*k3c, "compile", str(model.checkpoint), "--target", "cpu", "--out"]
    command = [*enter, "sh", "-c", script, "sh", str(full), str(ROOT), *build]

    def run(out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        environment |= {"OUT_FOLDER": str(out.parent)}
        return subprocess.run(
            [*command, str(out)],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    done = run(full / "pkg")
    assert done.returncode == 1 and "K3-K008" in done.stderr
    assert "No space left" in done.stderr and ".pkg.partial" not in done.stderr.splitlines()
    done = run(tmp_path / "out" / "pkg", K3C_CACHE_DIR=str(full))
    assert done.returncode == 1 and "K3-E003" in done.stderr
    assert _names(tmp_path / "out") == []


def test_results_that_do_not_fit(model: Model) -> None:
    weights = ("--weights", model.checkpoint, "--tokens", "1,2,3")
    done = run_k3c("logits", model.package, *weights, "--out", "/dev/full")
    assert done.returncode == 1 and "K3-E003" in done.stderr


def test_exit_codes(model: Model, tmp_path: Path) -> None:
    """0 done, 1 a mistake of the catalogue, 2 usage, 70 a bug of ours with a reproducer."""
    assert run_k3c("inspect", model.package).returncode == 0
    assert run_k3c("inspect", tmp_path).returncode == 1
    assert run_k3c("inspect").returncode == 2
    assert run_k3c("inspect", model.package, "--tokens", "many").returncode == 2
    broken = (
        "import sys, k3compiler.driver as d, k3compiler.cli.main as m\n"
        "d.write_kernels = lambda *_: 1 // 0\nm.main(sys.argv[1:])"
    )
    command = ["compile", str(model.checkpoint), "--target", "cpu", "--out", str(tmp_path / "p")]
    done = subprocess.run(
        [sys.executable, "-c", broken, *command],
        cwd=ROOT,
        env=os.environ | {"K3C_DUMP_DIR": str(tmp_path / "dumps")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 70, done.stderr
    (report,) = (tmp_path / "dumps").glob("k3c-bug-*.json")
    assert str(report) in done.stderr and "ZeroDivisionError" in report.read_text()
    assert _names(tmp_path) == ["dumps"]
