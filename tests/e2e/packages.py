"""Packages spoilt on purpose: bytes changed, with or without the digests that cover them."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from k3compiler.package.codec import canonical_json
from k3compiler.package.manifest import MANIFEST_NAME, Manifest, sha256_hex
from k3compiler.runtime.device.cpu import LEVELS, cpu_flags

ROOT = Path(__file__).parents[2]


def copy_package(package: Path, to: Path) -> Path:
    shutil.copytree(package, to)
    return to


def flip_byte(path: Path, at: int | None = None, bits: int = 0xFF) -> None:
    """Changes one byte (the middle one)."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= bits
    path.write_bytes(data)


def reseal(
    package: Path, change: Callable[[Manifest], Manifest] = lambda manifest: manifest
) -> None:
    """Patches every digest so that the package looks as if it had been built this way."""
    path = package / MANIFEST_NAME
    manifest = change(Manifest.from_json(json.loads(path.read_text())))
    digests = {name: sha256_hex((package / name).read_bytes()) for name in manifest.files}
    path.write_bytes(canonical_json(replace(manifest, digest="").sealed(digests).to_json()))


def edit_manifest(package: Path, **entries: Any) -> None:
    """Overwrites top-level entries, digests as they were."""
    path = package / MANIFEST_NAME
    path.write_bytes(canonical_json(json.loads(path.read_text()) | entries))


def runnable_levels() -> list[str]:
    """The instruction levels that this machine can execute, the one it prefers first."""
    flags = cpu_flags()
    return [level for level, needs in LEVELS.items() if needs <= flags]


def code_offset(library: Path, symbol: str) -> int:
    """Where a function's code starts in a shared object's file."""
    address = ctypes.cast(getattr(ctypes.CDLL(str(library)), symbol), ctypes.c_void_p).value
    assert address is not None
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, *_, name = line.split(maxsplit=5)
        low, high = (int(n, 16) for n in span.split("-"))
        if name == str(library) and low <= address < high:
            return address - low + int(offset, 16)
    raise AssertionError(f"{library} is not mapped")


def run_k3c(
    *arguments: object, environment: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """One command line in a process of its own."""
    command = [sys.executable, "-m", "k3compiler.cli.main", *(str(a) for a in arguments)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        **options,
    )
