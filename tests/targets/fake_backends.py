"""Backends that go wrong, or only pretend: what the build frame does is tested with them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from k3compiler.errors import K3Error
from k3compiler.targets.backend import BuildRequest, BuiltKernel
from k3compiler.targets.base import TargetSpec


class Fake:
    """The text says what happens: ``ok``, ``abort``, ``refuse`` or ``bug``; anything else is built too."""

    def __init__(self, spec: TargetSpec) -> None:
        self.spec = spec

    def versions(self) -> Mapping[str, str]:
        return {"fake": "1"}

    def sources(self) -> tuple[str, ...]:
        return ("k3compiler.targets.base",)

    def modules(self) -> tuple[str, ...]:
        return ()

    def compile(self, request: BuildRequest) -> BuiltKernel:
        print("chatter that must not look like an answer", flush=True)
        if request.tile_text == "abort":
            os.write(2, b"LLVM ERROR: no such register\n")
            os.abort()
        if request.tile_text == "refuse":
            raise K3Error("K3-T002", where="the compiler", expected="sense", found="nonsense")
        if request.tile_text == "bug":
            raise KeyError("forgotten")
        where = f"{os.getpid()}".encode()
        return BuiltKernel(request.symbol, {"ptx": request.tile_text.encode(), "pid": where})


class Newer(Fake):
    """Another version of the same tool."""

    def versions(self) -> Mapping[str, str]:
        return {"fake": "2"}


class ScaledProductOnOldChip(Fake):
    """FlyDSL asked for a scaled product on a chip that has none: LLVM ends the process."""

    def compile(self, request: BuildRequest) -> BuiltKernel:
        from k3compiler.targets.amd.flydsl.adapter import KernelBuilder

        b = KernelBuilder("k", ["!llvm.ptr<1>"], threads=64)
        fp4, fp8 = (b.op("llvm.mlir.undef", (), f"vector<{n}xi32>") for n in (4, 8))
        one = b.constant(127)
        b.store(b.mfma_scaled(fp4, fp8, b.zeros(4), (one, one), (0, 0)), b.arguments[0])
        return BuiltKernel(request.symbol, {"s": b.assembly("gfx942").encode()})
