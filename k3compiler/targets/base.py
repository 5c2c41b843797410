"""Targets by name: what each chip is, as data. Vendors' own folders know how to build for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Literal

from k3compiler.errors import K3Error

Kind = Literal["cpu", "cuda", "hip"]
KIB = 1024
GB = 10**9
TB = 10**12


@dataclass(frozen=True, slots=True)
class Link:
    """What a collective of a few KB costs among at most ``ranks`` chips (None: any number).

    Attributes:
        latency_s: of one all-reduce or all-gather inside a recorded step.
        bytes_per_s: that each rank receives.
    """

    ranks: int | None
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """One chip.

    Attributes:
        name: the name on the command line and in the manifest.
        kind: which runtime loads its binaries; ``cuda`` and ``hip`` are GPUs.
        isa: what the binaries are built for; targets of one ISA run each other's packages.
        warp_size: lanes of a warp or wave; 1 on a CPU.
        features: instructions and engines that lowerings may use, by name.
        shared_limit_bytes: shared memory (LDS) one workgroup may use; None where there is none.
        num_units: multiprocessors or compute units; None where it differs from box to box.
        memory_bytes, bytes_per_s: device memory and its peak rate; None where it differs.
        flops: dense peak rate by operand format, flop/s; empty where it differs.
        links: from the nearest ranks outward; latencies are assumptions (LINK_SOURCE), the build only chooses by them.
        verified: what was shown on this chip, in words.
        source: the public document that the numbers are from.
    """

    name: str
    kind: Kind
    isa: str
    warp_size: int
    features: frozenset[str]
    shared_limit_bytes: int | None
    num_units: int | None
    memory_bytes: int | None
    bytes_per_s: float | None
    flops: Mapping[str, float]
    verified: str
    source: str
    links: tuple[Link, ...] = ()

    def link(self, ranks: int) -> Link | None:
        """What joins that many ranks; None where nothing is known."""
        return next((n for n in self.links if n.ranks is None or ranks <= n.ranks), None)

    @property
    def is_gpu(self) -> bool:
        return self.kind != "cpu"

    @property
    def default_dtype(self) -> Literal["float32", "bfloat16"]:
        """The activation dtype where the user names none."""
        return "bfloat16" if self.is_gpu else "float32"


HOPPER_FEATURES = frozenset({"wgmma", "tma", "mbarrier", "fp8"})
BLACKWELL_FEATURES = frozenset(
    {"tcgen05", "tma", "mbarrier", "fp8", "mxfp4", "mxfp8", "tensor_memory"}
)
CDNA3_FEATURES = frozenset({"mfma", "buffer_load"})
CDNA4_FEATURES = frozenset({"mfma", "mfma_scaled", "buffer_load", "lds_dma", "mxfp4", "mxfp8"})

COMPILED_ONLY = "compiled only, not executed"
US = 1e-6
LINK_SOURCE = (
    "peak rates of NVLink, Infinity Fabric and a 400 Gb/s NIC a GPU; one-shot kernels over mapped memory take about "
    "5 us among peers, over a network two and a half times that"
)
_NETWORK = Link(None, 13 * US, 50 * GB)
_HOPPER_LINKS = (Link(8, 5 * US, 450 * GB), _NETWORK)
_BLACKWELL_LINKS = (Link(8, 5 * US, 900 * GB), _NETWORK)
_NVL72_LINKS = (Link(72, 5 * US, 900 * GB), _NETWORK)
_CDNA3_LINKS = (Link(8, 7 * US, 448 * GB), _NETWORK)
_CDNA4_LINKS = (Link(8, 7 * US, 538 * GB), _NETWORK)


def _rates(**tera: float) -> Mapping[str, float]:
    return MappingProxyType({name: value * 1e12 for name, value in tera.items()})


def _hopper(
    name: str, *, memory_gb: int, tb_per_s: float, verified: str, source: str
) -> TargetSpec:
    return TargetSpec(
        name=name,
        kind="cuda",
        isa="sm_90a",
        warp_size=32,
        features=HOPPER_FEATURES,
        shared_limit_bytes=227 * KIB,
        num_units=132,
        memory_bytes=memory_gb * GB,
        bytes_per_s=tb_per_s * TB,
        flops=_rates(f32=67, tf32=494.7, bf16=989.4, e4m3=1978.9),
        verified=verified,
        source=source,
        links=_HOPPER_LINKS,
    )


def _blackwell(
    name: str,
    isa: str,
    *,
    memory_gb: int,
    flops: Mapping[str, float],
    source: str,
    links: tuple[Link, ...] = _BLACKWELL_LINKS,
) -> TargetSpec:
    return TargetSpec(
        name=name,
        kind="cuda",
        isa=isa,
        warp_size=32,
        features=BLACKWELL_FEATURES,
        shared_limit_bytes=227 * KIB,
        num_units=148,
        memory_bytes=memory_gb * GB,
        bytes_per_s=8 * TB,
        flops=flops,
        verified=COMPILED_ONLY,
        source=source,
        links=links,
    )


_SPECS = (
    TargetSpec(
        name="cpu",
        kind="cpu",
        isa="x86-64",
        warp_size=1,
        features=frozenset({"avx2", "fma", "avx512"}),
        shared_limit_bytes=None,
        num_units=None,
        memory_bytes=None,
        bytes_per_s=None,
        flops=MappingProxyType({}),
        verified="executed on hardware (x86-64-v3 and v4 builds, chosen at load)",
        source="x86-64 psABI microarchitecture levels; rates are measured in the run that uses them",
    ),
    _hopper(
        "h100",
        memory_gb=80,
        tb_per_s=3.35,
        verified=COMPILED_ONLY,
        source="NVIDIA H100 datasheet, SXM5 column; CUDA programming guide, compute capability 9.0",
    ),
    _hopper(
        "h200",
        memory_gb=141,
        tb_per_s=4.8,
        verified="executed on hardware; every kernel verified",
        source="NVIDIA H200 datasheet, SXM column; CUDA programming guide, compute capability 9.0",
    ),
    _blackwell(
        "b200",
        "sm_100a",
        memory_gb=180,
        flops=_rates(f32=75, tf32=1125, bf16=2250, e4m3=4500, e2m1=9000),
        source="NVIDIA HGX B200 datasheet, per GPU, dense; CUDA guide, compute capability 10.0",
    ),
    _blackwell(
        "b300",
        "sm_103a",
        memory_gb=270,
        flops=_rates(f32=75, tf32=1125, bf16=2250, e4m3=4500, e2m1=13500),
        source="NVIDIA HGX B300 datasheet, per GPU, dense; CUDA guide, compute capability 10.3",
    ),
    _blackwell(
        "gb300",
        "sm_103a",
        memory_gb=279,
        flops=_rates(f32=80, tf32=1250, bf16=2500, e4m3=5000, e2m1=15000),
        source="NVIDIA GB300 NVL72 datasheet, per GPU, dense; CUDA guide, compute capability 10.3",
        links=_NVL72_LINKS,
    ),
    TargetSpec(
        name="mi300x",
        kind="hip",
        isa="gfx942",
        warp_size=64,
        features=CDNA3_FEATURES,
        shared_limit_bytes=64 * KIB,
        num_units=304,
        memory_bytes=192 * GB,
        bytes_per_s=5.3 * TB,
        flops=_rates(f32=163.4, bf16=1307.4, e4m3=2614.9),
        verified=COMPILED_ONLY,
        source="AMD Instinct MI300X data sheet; CDNA3 instruction set guide (LDS)",
        links=_CDNA3_LINKS,
    ),
    TargetSpec(
        name="mi355x",
        kind="hip",
        isa="gfx950",
        warp_size=64,
        features=CDNA4_FEATURES,
        shared_limit_bytes=160 * KIB,
        num_units=256,
        memory_bytes=288 * GB,
        bytes_per_s=8 * TB,
        flops=_rates(f32=157.3, bf16=2516.6, e4m3=5033.2, e2m1=10066.3),
        verified="every kernel executed on a CPU emulator of the ISA, not on hardware",
        source="AMD Instinct MI355X data sheet; CDNA4 instruction set guide (LDS)",
        links=_CDNA4_LINKS,
    ),
)

TARGETS: Mapping[str, TargetSpec] = MappingProxyType({spec.name: spec for spec in _SPECS})


def find_target(name: str) -> TargetSpec:
    """The target of that name.

    Raises:
        K3Error: ``K3-T001`` where there is none; the hint is the nearest name, or all of them.
    """
    spec = TARGETS.get(name)
    if spec is not None:
        return spec
    near = get_close_matches(name.lower(), TARGETS, n=1, cutoff=0.4)
    raise K3Error(
        "K3-T001",
        where="--target",
        expected=f"one of {', '.join(TARGETS)}",
        found=repr(name),
        hint=f"did you mean {near[0]}?" if near else "k3c targets lists them",
    )
