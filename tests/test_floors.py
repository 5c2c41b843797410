"""Import directions, checked on the source by import-linter and at run time by taking the compiler away."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import k3compiler

PACKAGE = Path(k3compiler.__file__).parent
ROOT = PACKAGE.parent
ROOMS = {
    "check", "cli", "dialects", "graph", "ir", "kernels", "package", "passes", "reference", "runtime", "targets",
}  # fmt: skip
GROUND = {"config", "draft_config", "errors", "knobs", "dtypes"}
BESIDE_THE_FLOORS = {"runtime", "check"}  # they have contracts of their own


def test_rooms_are_the_folders() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == ROOMS


def test_every_room_has_a_floor() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    (floors,) = [contract for contract in contracts if contract["type"] == "layers"]
    placed = {
        name
        for layer in floors["layers"]
        for name in layer.strip("()").replace(":", "|").split(" | ")
    }
    assert {name.strip() for name in placed} == ROOMS - BESIDE_THE_FLOORS | GROUND | {"driver"}


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the copy of the package in ``root``, with its pyproject.toml."""
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, '.'); from importlinter.cli import "
               "lint_imports_command; lint_imports_command()", "--no-cache"]  # fmt: skip
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_imports_point_down() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("knobs.py", "import k3compiler.package.expr", "floors"),
        ("runtime/__init__.py", "import k3compiler.targets.base", "the runtime knows the package"),
        ("kernels/__init__.py", "import torch_mlir", "only ir imports the MLIR bindings"),
        ("package/__init__.py", "import k3compiler.runtime", "the package imports neither side"),
    ],
)
def test_a_forbidden_import_is_found(module: str, line: str, contract: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "k3compiler", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "k3compiler" / module).open("a") as file:
        file.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    assert any(contract in text and "BROKEN" in text for text in done.stdout.splitlines()), (
        done.stdout
    )


RUNTIME_PROBE = """
import importlib, pkgutil, sys
ABSENT = ("torch_mlir", "triton", "torch", "cuda", "mlx", "transformers")
COMPILER = ("targets", "passes", "graph", "kernels", "dialects", "ir", "driver", "cli")

class Refuse:
    def find_spec(self, name, path=None, target=None):
        parts = name.split(".")
        if parts[0] in ABSENT or (parts[0] == "k3compiler" and parts[1:2] and parts[1] in COMPILER):
            raise ImportError(f"{name} is not for the runtime")

sys.meta_path.insert(0, Refuse())
for room in ("package", "runtime", "check"):
    package = importlib.import_module(f"k3compiler.{room}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name != "k3compiler.runtime.device.cuda":
            importlib.import_module(module.name)
"""


def test_the_runtime_works_without_the_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNTIME_PROBE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
