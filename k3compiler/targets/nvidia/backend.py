"""Tile programs as PTX and cubins: Triton down to PTX, its ptxas from there."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.ir.context import parse_module
from k3compiler.kernels.moe_planes import planes_program
from k3compiler.package.manifest import LaunchRecord, ResourceRecord
from k3compiler.targets.backend import BuildRequest, BuiltKernel, refuse_shared
from k3compiler.targets.base import TargetSpec
from k3compiler.targets.nvidia.mx4_plane import emit_mx4_plane
from k3compiler.targets.triton_ir.emitter import Form, emit_triton, program_label
from k3compiler.targets.triton_ir.toolchain import (
    COMPILER_MODULE,
    Assembled,
    GpuChip,
    run_stages,
    triton_version,
)

PTX_VERSION = 90  # what a CUDA 13.0 driver can still translate itself
TENSOR_MEMORY_COLUMNS = 512
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
FORM = Form(has_tf32=True, has_early_start=True, target_ops={"tile.mx4_plane": emit_mx4_plane})
ONE_TOKEN = ("one_planes", "one_matrix")
INSTRUCTIONS = {
    "wgmma": r"\bwgmma\.mma_async",
    "tcgen05.mma": r"\btcgen05\.mma\.",
    "mma.sync": r"\bmma\.sync\.",
}


class NvidiaBackend:
    """Builds for one NVIDIA chip (see :class:`k3compiler.targets.backend.TargetBackend`)."""

    def __init__(self, spec: TargetSpec) -> None:
        self.spec = spec
        number = re.fullmatch(r"sm_(\d+)a", spec.isa)
        assert number, f"{spec.name}: {spec.isa} is no NVIDIA ISA"
        self.chip = GpuChip("cuda", int(number[1]), spec.warp_size)

    def versions(self) -> Mapping[str, str]:
        return {"triton": triton_version(), "ptx": str(PTX_VERSION)}

    def sources(self) -> tuple[str, ...]:
        made_here = (f"k3compiler.kernels.moe_{name}" for name in ("planes", *ONE_TOKEN))
        return ("k3compiler.targets.triton_ir", "k3compiler.targets.nvidia", *made_here)

    def modules(self) -> tuple[str, ...]:
        return (COMPILER_MODULE, "triton.backends.nvidia.compiler")

    def compile(self, request: BuildRequest) -> BuiltKernel:
        module = parse_module(request.tile_text)
        if request.schedule.get("form") == "planes":
            label = program_label(module)
            module = planes_program(
                request.family, request.params, symbol=request.symbol, label=label
            )
        form = replace(FORM, next_grid=request.schedule.get("next_grid", FORM.next_grid))
        assembled = self._to_ptx(request, emit_triton(module, form))
        ptx = f"// {program_label(module)}\n{assembled.outputs['ptx']}"
        metadata = assembled.metadata
        refuse_shared(request, self.spec, metadata["shared"])
        self._refuse_tensor_memory(request, metadata.get("tmem_size") or 0)
        cubin, log = _ptxas(ptx, self.spec.isa, request)
        instructions = {k: n for k, p in INSTRUCTIONS.items() if (n := len(re.findall(p, ptx)))}
        launch = LaunchRecord(
            num_warps=metadata["num_warps"],
            num_stages=metadata["num_stages"],
            shared_bytes=metadata["shared"],
            num_ctas=metadata["num_ctas"],
            global_scratch_bytes=metadata["global_scratch_size"],
            global_scratch_align=metadata["global_scratch_align"],
            awaits_former=FORM.has_early_start,
        )
        resources = ResourceRecord(*_resources(log), instructions)
        return BuiltKernel(request.symbol, {"ptx": ptx.encode(), "cubin": cubin}, launch, resources)

    def _to_ptx(self, request: BuildRequest, text: str) -> Assembled:
        chosen = {k: v for k, v in request.schedule.items() if k in OPTIONS and v is not None}
        options: dict[str, Any] = {"num_warps": 4, "num_stages": 3, **chosen}
        options |= {"enable_fp_fusion": True, "ptx_version": PTX_VERSION}
        try:
            return run_stages(text, self.chip, options, last="ptx")
        except K3Error:
            raise
        except Exception as error:
            raise K3Error(
                "K3-T002",
                where=request.place,
                expected=f"Triton to take it for {self.spec.isa}",
                found=f"{type(error).__name__}: {error}",
            ) from error

    def _refuse_tensor_memory(self, request: BuildRequest, used: int) -> None:
        if used > TENSOR_MEMORY_COLUMNS:
            raise K3Error(
                "K3-T004",
                where=request.place,
                expected=f"at most {TENSOR_MEMORY_COLUMNS} columns of tensor memory",
                found=f"{used} columns",
                hint="smaller accumulator tiles in the schedule",
            )


def _ptxas(ptx: str, isa: str, request: BuildRequest) -> tuple[bytes, str]:
    """Assembles in a folder of its own under fixed names, so that no path gets into the bytes."""
    from triton import knobs

    tool = knobs.nvidia.ptxas_blackwell.path  # the one that Triton uses from sm_90 on
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.ptx").write_text(ptx)
        # regAllocOptLevel: as Triton calls it
        flags = ["-lineinfo", "-v", "--regAllocOptLevel=2", f"--gpu-name={isa}"]
        command = [tool, *flags, "kernel.ptx", "-o", "kernel.cubin"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise K3Error(
                "K3-T002",
                where=request.place,
                expected=f"ptxas to take it for {isa}",
                found=(done.stderr or done.stdout).strip()[-2000:],
            )
        return (Path(folder) / "kernel.cubin").read_bytes(), done.stderr + done.stdout


def _resources(log: str) -> tuple[int, int]:
    """Registers and bytes of spill stores a thread, from what ptxas -v says."""
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
    assert registers, f"ptxas did not say how many registers it used: {log}"
    return max(registers), sum(spills)
