"""Tile programs as AMDGCN assembly and code objects: through Triton, or FlyDSL where the schedule says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.ir.context import parse_module
from k3compiler.package.manifest import LaunchRecord
from k3compiler.targets.amd.flydsl.adapter import flydsl_version
from k3compiler.targets.amd.flydsl.build import build_flydsl
from k3compiler.targets.amd.resources import resources_of
from k3compiler.targets.backend import BuildRequest, BuiltKernel, refuse_shared
from k3compiler.targets.base import TargetSpec
from k3compiler.targets.triton_ir.emitter import Form, emit_triton, program_label
from k3compiler.targets.triton_ir.toolchain import (
    COMPILER_MODULE,
    Assembled,
    GpuChip,
    run_stages,
    triton_version,
)

OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim")
TF32_ISAS = ("gfx942",)  # xf32 went away with gfx950


class AmdBackend:
    """Builds for one AMD chip (see :class:`k3compiler.targets.backend.TargetBackend`)."""

    def __init__(self, spec: TargetSpec) -> None:
        self.spec = spec
        self.chip = GpuChip("hip", spec.isa, spec.warp_size)

    def versions(self) -> Mapping[str, str]:
        return {"triton": triton_version(), "flydsl": flydsl_version()}

    def sources(self) -> tuple[str, ...]:
        return ("k3compiler.targets.triton_ir", "k3compiler.targets.amd")

    def modules(self) -> tuple[str, ...]:
        return (COMPILER_MODULE, "triton.backends.amd.compiler")

    def compile(self, request: BuildRequest) -> BuiltKernel:
        if request.schedule.get("form") == "flydsl":
            return build_flydsl(request, self.spec)
        module = parse_module(request.tile_text)
        form = Form(has_tf32=self.spec.isa in TF32_ISAS)
        assembled = self._assemble(request, emit_triton(module, form))
        assembly = f"; {program_label(module)}\n{assembled.outputs['amdgcn']}"
        metadata = assembled.metadata
        refuse_shared(request, self.spec, metadata["shared"])
        hsaco = assembled.outputs["hsaco"]
        assert isinstance(hsaco, bytes)
        launch = LaunchRecord(
            num_warps=metadata["num_warps"],
            num_stages=metadata["num_stages"],
            shared_bytes=metadata["shared"],
            num_ctas=metadata["num_ctas"],
            global_scratch_bytes=metadata["global_scratch_size"] or 0,
            global_scratch_align=metadata["global_scratch_align"] or 1,
        )
        files = {"s": assembly.encode(), "hsaco": hsaco}
        return BuiltKernel(request.symbol, files, launch, resources_of(assembly))

    def _assemble(self, request: BuildRequest, text: str) -> Assembled:
        chosen = {k: v for k, v in request.schedule.items() if k in OPTIONS and v is not None}
        options: dict[str, Any] = {"num_warps": 4, "num_stages": 2, **chosen}
        try:
            return run_stages(text, self.chip, options | {"enable_fp_fusion": True}, last="hsaco")
        except K3Error:
            raise
        except Exception as error:
            raise K3Error(
                "K3-T002",
                where=request.place,
                expected=f"Triton to take it for {self.spec.isa}",
                found=f"{type(error).__name__}: {error}",
            ) from error
