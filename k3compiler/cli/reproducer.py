"""What a bug report needs, in one file: the command line, the versions, the knobs, the traceback."""

from __future__ import annotations

import json
import platform
import tempfile
import traceback
from importlib import metadata
from pathlib import Path

from k3compiler import __version__, knobs
from k3compiler.errors import K3Error

PACKAGES = ("numpy", "ml_dtypes", "safetensors", "torch-mlir", "triton", "torch", "cuda-bindings")


def write_reproducer(arguments: list[str], error: Exception) -> Path:
    """Write ``k3c-bug-*.json`` into K3C_DUMP_DIR, or the system's temporary directory."""
    report = {
        "command": ["k3c", *arguments],
        "directory": str(Path.cwd()),
        "version": __version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "knobs": knobs.settings(),
        "traceback": traceback.format_exception(error),
    }
    with tempfile.NamedTemporaryFile(
        "w", prefix="k3c-bug-", suffix=".json", dir=_directory(), delete=False
    ) as file:
        json.dump(report, file, indent=1)
    return Path(file.name)


def _directory() -> Path | None:
    try:
        folder = knobs.DUMP_DIR.get()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    except (K3Error, OSError):  # the report matters more than where it lies
        return None
    return folder


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
