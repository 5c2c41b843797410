"""The CPU twin of a package: its tile programs, compiled for this CPU. What ``k3c verify --on cpu`` runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k3compiler.package.manifest import KernelRecord
    from k3compiler.package.reader import Package
    from k3compiler.targets.backend import BuildRequest


def write_cpu_twin(package: Package, folder: Path, *, kernels: Sequence[str] | None) -> Package:
    """Compile the programs under ``kernels/*.tile.mlir`` and write them as a ``cpu`` package.

    The twin has the kernels that ``kernels`` names (parts of symbols; None for all) and no steps.

    Raises:
        K3Error: ``K3-V002`` for a program that does not verify, ``K3-T...`` where it does not compile.
    """
    from k3compiler.package.manifest import Plan, TargetRecord, WeightMap
    from k3compiler.package.reader import Package as PackageClass
    from k3compiler.package.writer import PackageWriter
    from k3compiler.targets.base import find_target
    from k3compiler.targets.build import build_kernels
    from k3compiler.targets.cpu.backend import link_libraries

    spec = find_target("cpu")
    chosen = [k for k in package.manifest.kernels if _is_chosen(k.symbol, kernels)]
    texts = {k.symbol: package.read(k.files["tile"]).decode() for k in chosen}
    built = build_kernels([_request(k, texts[k.symbol]) for k in chosen], spec)
    with PackageWriter(folder) as writer:
        files = {s: writer.add_text(f"kernels/{s}.tile.mlir", text) for s, text in texts.items()}
        libraries = {
            level: writer.add_bytes(f"lib/{level}.so", data)
            for level, data in link_libraries(built).items()
        }
        writer.add_weights(WeightMap(()))
        twin = replace(
            package.manifest,
            target=TargetRecord(spec.name, spec.kind, spec.isa),
            kernels=tuple(replace(k, files={"tile": files[k.symbol]}) for k in chosen),
            plans={p: writer.add_plan(Plan(p, (), (), (), (), ())) for p in ("prefill", "decode")},
            weights="weights.json",
            libraries=libraries,
        )
        writer.commit(twin)
    return PackageClass.open(folder)


def _is_chosen(symbol: str, parts: Sequence[str] | None) -> bool:
    return parts is None or any(part in symbol for part in parts)


def _request(kernel: KernelRecord, text: str) -> BuildRequest:
    from k3compiler.targets.backend import BuildRequest

    shape = ", ".join(f"{name}={value}" for name, value in kernel.params.items())
    return BuildRequest(kernel.symbol, text, kernel.schedule, kernel.op, kernel.layers, shape)
