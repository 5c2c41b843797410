"""What building one kernel means: the request, the result, and the table of who builds for what.

Every target goes through the same frame (:mod:`k3compiler.targets.build`): worker processes, kernel cache, errors
that name the op. A target is one class with three methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from k3compiler.errors import K3Error
from k3compiler.package.manifest import LaunchRecord, ResourceRecord
from k3compiler.targets.base import Kind, TargetSpec


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One kernel to build.

    Attributes:
        symbol: the function's name, unique in the package.
        tile_text: the tile program as MLIR text, with locations.
        schedule: ``num_warps``, ``num_stages`` and what else the target's compiler takes.
        op: the op it was made for, e.g. ``kda.output``.
        layers: the layers that launch it.
        shape: the static parameters, in words, for messages.
        family: the builder in ``kernels/`` that wrote the tile program.
        params: its static parameters; with the family, what a backend with a form of its own for the op lowers from.
    """

    symbol: str
    tile_text: str
    schedule: Mapping[str, Any] = field(default_factory=dict[str, Any])
    op: str = ""
    layers: tuple[int, ...] = ()
    shape: str = ""
    family: str = ""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def place(self) -> str:
        """Kernel, op, layers and shape in words: the ``where`` of errors."""
        layers = f"layers {_spans(self.layers)}" if self.layers else "outside the layers"
        shape = f", {self.shape}" if self.shape else ""
        return f"kernel {self.symbol} ({self.op or 'no op'}, {layers}{shape})"


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel's binaries by kind (``ptx``, ``cubin``, ``s``, ``hsaco``, ``x86-64-v3``...), and how it launches."""

    symbol: str
    files: Mapping[str, bytes]
    launch: LaunchRecord = field(default_factory=LaunchRecord)
    resources: ResourceRecord = field(default_factory=ResourceRecord)


class TargetBackend(Protocol):
    """How kernels are built for one kind of target. Made in the worker, once."""

    def versions(self) -> Mapping[str, str]:
        """Versions of every tool that the binaries depend on.

        Raises:
            K3Error: ``K3-T003`` for one that is absent or not supported. Must not import the tool itself.
        """
        ...

    def sources(self) -> tuple[str, ...]:
        """Packages whose code decides the binaries' bytes (a part of the cache's key)."""
        ...

    def modules(self) -> tuple[str, ...]:
        """What a worker imports once, before the kernels that are each built in a fork of it."""
        ...

    def compile(self, request: BuildRequest) -> BuiltKernel:
        """Builds one kernel.

        Raises:
            K3Error: ``K3-T002`` where the compiler refuses it, ``K3-T004`` over the target's memory on chip.
        """
        ...


# kind of target -> "module:class"; the class takes the TargetSpec
BACKENDS: dict[Kind, str] = {
    "cuda": "k3compiler.targets.nvidia.backend:NvidiaBackend",
    "hip": "k3compiler.targets.amd.backend:AmdBackend",
    "cpu": "k3compiler.targets.cpu.backend:CpuBackend",
}


def backend_for(spec: TargetSpec, path: str | None = None) -> TargetBackend:
    """The backend that builds for a target; ``path`` is a line of the table, by default the target's own."""
    module, _, name = (path or BACKENDS[spec.kind]).partition(":")
    return getattr(import_module(module), name)(spec)


def refuse_shared(request: BuildRequest, spec: TargetSpec, used: int) -> None:
    """Refuses a kernel that needs more shared memory than the target has.

    Raises:
        K3Error: ``K3-T004`` naming the kernel.
    """
    limit = spec.shared_limit_bytes
    if limit is None or used <= limit:
        return
    raise K3Error(
        "K3-T004",
        where=request.place,
        expected=f"at most {limit} bytes of shared memory on {spec.name}",
        found=f"{used} bytes with schedule {dict(request.schedule)}",
        hint="smaller blocks or fewer pipeline stages (num_stages) in the schedule",
    )


def _spans(layers: tuple[int, ...]) -> str:
    """Layer numbers with runs joined: ``1-3,7``."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
