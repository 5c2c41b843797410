"""Triton's stages on our text: no cache of Triton's, no file names of this machine in the result."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3compiler.errors import K3Error

COMPILER_MODULE = "triton.compiler.compiler"
SUPPORTED_MINORS = ("3.9",)  # Triton's IR text and compiler options change between minor versions


@dataclass(frozen=True, slots=True)
class GpuChip:
    """A chip as Triton names it."""

    backend: str
    arch: int | str
    warp_size: int


@dataclass(frozen=True, slots=True)
class Assembled:
    """What came out: the last text before the binary, the stage outputs, Triton's launch metadata."""

    outputs: Mapping[str, str | bytes]
    metadata: Mapping[str, Any]


def triton_version() -> str:
    """The installed Triton's version, without importing it.

    Raises:
        K3Error: ``K3-T003`` where it is absent or of a minor version that was not tried.
    """
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if ".".join(version.split(".")[:2]) not in SUPPORTED_MINORS:
        raise K3Error(
            "K3-T003",
            where="package triton",
            expected=f"triton {' or '.join(f'{minor}.x' for minor in SUPPORTED_MINORS)}",
            found=version,
            hint="pip install 'k3compiler[compile]' in an environment of its own; kernels need no Triton to run",
        )
    return version


def run_stages(text: str, chip: GpuChip, options: Mapping[str, Any], last: str) -> Assembled:
    """Runs Triton's stages from ``ttir`` to ``last`` on a module's text.

    Raises:
        RuntimeError: (or what else Triton raises) where a stage fails.
    """
    triton_version()
    from triton._C.libtriton import ir as triton_ir
    from triton.backends.compiler import GPUTarget, Language
    from triton.compiler.compiler import make_backend

    target = GPUTarget(chip.backend, chip.arch, chip.warp_size)
    backend = make_backend(target)
    parsed = backend.parse_options(dict(options))
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, Language.TRITON)
    context = triton_ir.context()
    triton_ir.load_dialects(context)
    backend.load_dialects(context)
    module: Any = _parse(text, context)
    metadata: dict[str, Any] = {"target": target, **parsed.__dict__}
    outputs: dict[str, str | bytes] = {}
    for name, stage in stages.items():
        module = stage(module, metadata)
        outputs[name] = module if isinstance(module, (str, bytes)) else str(module)
        if name == last:
            break
    return Assembled(outputs, metadata)


def _parse(text: str, context: Any) -> Any:
    from triton._C.libtriton import ir as triton_ir

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ttir"
        path.write_text(text)
        module = triton_ir.parse_mlir_module(str(path), context)
    module.context = context
    return module
