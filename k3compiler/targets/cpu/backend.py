"""Tile programs as x86-64 objects, one an instruction level (see :mod:`k3compiler.targets.backend`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from k3compiler.targets.backend import BuildRequest, BuiltKernel
from k3compiler.targets.base import TargetSpec
from k3compiler.targets.cpu.library import LEVELS, compile_object, compile_runner, link
from k3compiler.targets.cpu.runner import RUNNER_SYMBOL


class CpuBackend:
    """Builds for every x86-64 level; a package carries all of them."""

    def __init__(self, spec: TargetSpec) -> None:
        self.spec = spec

    def versions(self) -> Mapping[str, str]:
        return {"torch-mlir": version("torch-mlir")}

    def sources(self) -> tuple[str, ...]:
        return ("k3compiler.targets.cpu",)

    def modules(self) -> tuple[str, ...]:
        return ()

    def compile(self, request: BuildRequest) -> BuiltKernel:
        objects = {level: compile_object(request.tile_text, level) for level in LEVELS}
        return BuiltKernel(request.symbol, objects)


def link_libraries(kernels: Mapping[str, BuiltKernel]) -> dict[str, bytes]:
    """The shared object of every level: all kernels and the plan runner."""
    libraries: dict[str, bytes] = {}
    for level in LEVELS:
        objects = {RUNNER_SYMBOL: compile_runner(level)}
        objects |= {symbol: kernels[symbol].files[level] for symbol in sorted(kernels)}
        libraries[level] = link(objects)
    return libraries
