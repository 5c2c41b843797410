"""From collected kernels to what is built, and from what was built to a package's files and records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from k3compiler.config import ModelConfig
from k3compiler.package.manifest import ArgRecord, FloorRecord, KernelRecord
from k3compiler.package.writer import PackageWriter
from k3compiler.passes.lower_to_tile.builder import Kernel, Kernels
from k3compiler.passes.lower_to_tile.floors import floor_of
from k3compiler.targets.backend import BuildRequest, BuiltKernel
from k3compiler.targets.base import TargetSpec
from k3compiler.targets.cpu.backend import link_libraries

SUFFIXES = {"tile": "tile.mlir", "ptx": "ptx", "cubin": "cubin", "s": "s", "hsaco": "hsaco"}
LOADED = ("cubin", "hsaco")


def request_of(kernel: Kernel) -> BuildRequest:
    """What the target is asked to build."""
    shape = ", ".join(f"{k}={v}" for k, v in kernel.params.items())
    layers = tuple(sorted(kernel.layers))
    return BuildRequest(
        kernel.symbol,
        kernel.text,
        kernel.options,
        kernel.op,
        layers,
        shape,
        family=kernel.family,
        params=kernel.params,
    )


def write_kernels(
    writer: PackageWriter,
    kernels: Kernels,
    built: Mapping[str, BuiltKernel],
    config: ModelConfig,
    *,
    only_binaries: bool = False,
) -> tuple[KernelRecord, ...]:
    """The files of every kernel that was built (``only_binaries``: what a device loads), and its record."""
    records: list[KernelRecord] = []
    num_experts = config.moe.num_experts if config.moe else 1
    for kernel in sorted(kernels.by_key.values(), key=lambda k: k.symbol):
        binary = built.get(kernel.symbol)
        if binary is None:
            continue
        texts = {} if only_binaries else {"tile": kernel.text.encode(), **binary.files}
        wanted = texts or {k: d for k, d in binary.files.items() if k in LOADED}
        files = {
            kind: writer.add_bytes(f"kernels/{kernel.symbol}.{SUFFIXES[kind]}", data)
            for kind, data in wanted.items()
            if kind in SUFFIXES
        }
        records.append(_record(kernel, binary, files, floor_of(kernel, num_experts=num_experts)))
    return tuple(records)


def _record(
    kernel: Kernel, binary: BuiltKernel, files: dict[str, str], floor: FloorRecord
) -> KernelRecord:
    arguments = tuple(
        ArgRecord(a.name, "scalar", a.dtype)
        if a.shape is None
        else ArgRecord(a.name, "buffer", a.dtype, a.shape, None, _access(a.access))
        for a in kernel.info.arguments
    )
    return KernelRecord(
        symbol=kernel.symbol,
        family=kernel.family,
        op=kernel.op,
        args=arguments,
        grid=kernel.info.grid,
        params=dict(kernel.params),
        equation=kernel.equation,
        layers=tuple(sorted(kernel.layers)),
        files=files,
        launch=binary.launch,
        resources=binary.resources,
        schedule=dict(kernel.options),
        floor=floor,
    )


def _access(text: str) -> Literal["r", "w", "rw"]:
    assert text in ("r", "w", "rw")
    return text


def write_libraries(
    writer: PackageWriter, spec: TargetSpec, built: Mapping[str, BuiltKernel]
) -> dict[str, str]:
    """The shared objects of a CPU package, one an instruction level."""
    libraries = {} if spec.is_gpu else link_libraries(built)
    return {level: writer.add_bytes(f"lib/{level}.so", data) for level, data in libraries.items()}
