"""The schema of a kernel package: manifest, plans and the weight map as frozen records.

The records mirror docs/package.md key by key; :mod:`k3compiler.package.codec` turns them into JSON
and back.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Literal

from k3compiler.config import ModelConfig
from k3compiler.errors import K3Error
from k3compiler.package.codec import canonical_json, decode, encode
from k3compiler.package.expr import Expr

SCHEMA_VERSION = 2
MANIFEST_NAME = "manifest.json"
_TAP = "tap."

Phase = Literal["prefill", "decode"]


def tap_name(layer: int) -> str:
    """The output that holds the running sum after a layer."""
    return f"{_TAP}{layer}"


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """What the package was built for: ``kind`` picks the device class, ``isa`` must match."""

    name: str
    kind: Literal["cpu", "cuda", "hip"]
    isa: str


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A matrix that every rank might hold whole, and what the build chose.

    ``saved_us``: what one token saves in a layer where it is cut; ``added_us``: what the collective that cutting needs
    would add, beside other work; both at the target's rates.
    """

    matrix: str
    is_cut: bool
    saved_us: float
    added_us: float

    def __str__(self) -> str:
        done = "cut" if self.is_cut else "whole"
        return f"{self.matrix} {done} (saves {self.saved_us:g} us, adds {self.added_us:g} us)"


@dataclass(frozen=True, slots=True)
class ParallelRecord:
    """Degrees of tensor and expert parallelism, and what else is cut over the ``tp`` ranks."""

    tp: int = 1
    ep: int = 1
    choices: tuple[ShardRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class ArgRecord:
    """One kernel argument: a buffer (with shape, strides and access) or a scalar."""

    name: str
    kind: Literal["buffer", "scalar"]
    dtype: str
    shape: tuple[Expr, ...] = ()
    strides: tuple[Expr, ...] | None = None
    access: Literal["r", "w", "rw"] = "r"


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """How a GPU kernel is launched; sizes in bytes. All defaults for a CPU kernel.

    ``awaits_former``: every program waits for the grid before it to end, its memory visible, so that a launch may ask
    for the kernel to be started while that grid still runs.
    """

    num_warps: int = 1
    num_stages: int = 1
    shared_bytes: int = 0
    num_ctas: int = 1
    global_scratch_bytes: int = 0
    global_scratch_align: int = 1
    awaits_former: bool = False


@dataclass(frozen=True, slots=True)
class ResourceRecord:
    """What the binary uses: registers and spills per thread, matrix instructions by name."""

    registers: int = 0
    spill_bytes: int = 0
    instructions: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class FloorRecord:
    """The least bytes moved and flops done, as expressions."""

    bytes: Expr = 0
    flops: Expr = 0


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One kernel: what it is, its files (kind -> path), its arguments and its launch rule."""

    symbol: str
    family: str
    op: str
    args: tuple[ArgRecord, ...]
    grid: tuple[Expr, Expr, Expr]
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    equation: str = ""
    layers: tuple[int, ...] = ()
    files: dict[str, str] = field(default_factory=dict[str, str])
    launch: LaunchRecord = LaunchRecord()
    resources: ResourceRecord = field(default_factory=ResourceRecord)
    schedule: dict[str, Any] = field(default_factory=dict[str, Any])
    floor: FloorRecord = FloorRecord()


@dataclass(frozen=True, slots=True)
class BufferRecord:
    """A plan's buffer. Workspace lies in a ``storage`` block while steps ``first..last`` run."""

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    kind: Literal["workspace", "output", "state", "input"] = "workspace"
    storage: int | None = None
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class StorageRecord:
    """A block of workspace memory, shared by buffers that are never alive together."""

    id: int
    bytes: Expr


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """Launch kernel ``launch``; ``args`` in the order of the kernel's own."""

    launch: str
    args: tuple[str, ...]
    grid: tuple[Expr, Expr, Expr]
    op: str
    layer: int | None = None
    stream: int = 0
    waits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CallStep:
    """A library call, e.g. ``gemm``: ``y = x @ w.T``."""

    call: str
    args: tuple[str, ...]
    op: str
    layer: int | None = None
    stream: int = 0
    waits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectiveStep:
    """A collective over ``count`` elements of each buffer in ``args``."""

    collective: str
    args: tuple[str, ...]
    count: Expr
    group: str
    op: str
    layer: int | None = None
    stream: int = 0
    waits: tuple[int, ...] = ()


Step = LaunchStep | CallStep | CollectiveStep
_STEP_KINDS: dict[str, type[LaunchStep] | type[CallStep] | type[CollectiveStep]] = {
    "launch": LaunchStep,
    "call": CallStep,
    "collective": CollectiveStep,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The launch list of one phase. ``symbols`` are sizes derived from the step's own symbols."""

    phase: Phase
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    buffers: tuple[BufferRecord, ...]
    storage: tuple[StorageRecord, ...]
    steps: tuple[Step, ...]
    symbols: dict[str, Expr] = field(default_factory=dict[str, Expr])

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers whose running sums are outputs, ascending: what a draft model reads."""
        names = [name for name in self.outputs if name.startswith(_TAP)]
        return tuple(sorted(int(name.removeprefix(_TAP)) for name in names))

    def to_json(self) -> dict[str, Any]:
        return encode(self)

    @classmethod
    def from_json(cls, data: Any, where: str = "plan") -> Plan:
        """Raises K3-K003 where the JSON is not a plan."""
        if not isinstance(data, dict) or not isinstance(data.get("steps"), list):
            raise K3Error(
                "K3-K003",
                where=where,
                expected="an object with a list of steps",
                found=str(data)[:80],
            )
        whole = dict(data)
        steps = tuple(_step(s, f"{where}.steps[{i}]") for i, s in enumerate(whole["steps"]))
        return replace(decode(Plan, whole | {"steps": []}, where), steps=steps)


def _step(data: Any, where: str) -> Step:
    kinds = [k for name, k in _STEP_KINDS.items() if isinstance(data, dict) and name in data]
    if len(kinds) != 1:
        raise K3Error(
            "K3-K003", where=where, expected="launch, call or collective", found=str(data)[:80]
        )
    return decode(kinds[0], data, where)


@dataclass(frozen=True, slots=True)
class ParamRecord:
    """One device array of weights and the SOURCE tree that fills it (docs/package.md)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WeightMap:
    """``weights.json``."""

    params: tuple[ParamRecord, ...]

    def to_json(self) -> dict[str, Any]:
        return encode(self)

    @classmethod
    def from_json(cls, data: Any, where: str = "weights.json") -> WeightMap:
        """Raises K3-K003 where the JSON is not a weight map."""
        return decode(cls, data, where)


@dataclass(frozen=True, slots=True)
class Manifest:
    """``manifest.json``: model, target and every file with its digest.

    ``digest`` is the SHA-256 of the manifest's own bytes with an empty ``digest``; :meth:`sealed`
    sets it.
    """

    version: str
    model: dict[str, Any]
    model_id: str
    target: TargetRecord
    dtype: Literal["float32", "bfloat16"]
    moe: str
    kernels: tuple[KernelRecord, ...]
    plans: dict[str, str]
    weights: str = "weights.json"
    parallel: ParallelRecord = ParallelRecord()
    page_tokens: int = 64
    chunk_tokens: int = 64
    decode_buckets: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    libraries: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, str] = field(default_factory=dict[str, str])
    digest: str = ""
    schema: int = SCHEMA_VERSION

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return ModelConfig.from_dict(self.model)

    @property
    def storage_dtype(self) -> str:
        """``dtype`` as buffers spell it: ``f32`` or ``bf16``."""
        return {"float32": "f32", "bfloat16": "bf16"}[self.dtype]

    def kernel(self, symbol: str) -> KernelRecord:
        """The kernel of that name; it must exist (:meth:`Package.open` checked the plans)."""
        return next(k for k in self.kernels if k.symbol == symbol)

    def sealed(self, files: dict[str, str]) -> Manifest:
        """This manifest with the digests of its files and its own."""
        bare = replace(self, files=dict(sorted(files.items())), digest="")
        return replace(bare, digest=sha256_hex(canonical_json(bare.to_json())))

    def to_json(self) -> dict[str, Any]:
        return encode(self)

    @classmethod
    def from_json(cls, data: Any, where: str = MANIFEST_NAME) -> Manifest:
        """Read and check a manifest (everything but file contents).

        Raises:
            K3Error: K3-K004 another schema version, K3-K003 not a manifest, K3-K006 a path that
                leaves the directory.
        """
        if not isinstance(data, dict) or "schema" not in data:
            raise K3Error(
                "K3-K003", where=where, expected="a manifest object", found=str(data)[:80]
            )
        if data["schema"] != SCHEMA_VERSION:
            raise K3Error(
                "K3-K004",
                where=where,
                expected=f"schema {SCHEMA_VERSION}",
                found=f"schema {data['schema']!r}",
                hint="compile the model again with this version of k3compiler",
            )
        manifest = decode(cls, data, where)
        manifest._check_paths(where)
        return manifest

    def _check_paths(self, where: str) -> None:
        named = [p for k in self.kernels for p in k.files.values()]
        named += [*self.plans.values(), self.weights, *self.libraries.values()]
        for path in [*named, *self.files]:
            check_path(path, where)
        absent = sorted(set(named) - set(self.files))
        if absent:
            raise K3Error(
                "K3-K003", where=f"{where}.files", expected=f"a digest of {absent[0]}", found="none"
            )


def sha256_hex(data: bytes) -> str:
    """The digest spelling of the manifest."""
    return hashlib.sha256(data).hexdigest()


def model_digest(model: dict[str, Any]) -> str:
    """``model_id`` of a model dictionary (``ModelConfig.to_dict``)."""
    return sha256_hex(canonical_json(model))


def check_path(path: str, where: str) -> None:
    """Refuse a path that is absolute, has ``..`` or backslashes, or is spelled in two ways.

    Raises:
        K3Error: K3-K006.
    """
    pure = PurePosixPath(path)
    odd = not path or "\\" in path or "\0" in path or str(pure) != path
    if odd or pure.is_absolute() or ".." in pure.parts or path == ".":
        raise K3Error(
            "K3-K006", where=where, expected="a relative path inside the package", found=repr(path)
        )
