"""Candidates of a model's kernels: enumerated, ranked by the cost model, built, and put into one bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, prod
from pathlib import Path
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.ir.location import Origin
from k3compiler.package.codec import encode
from k3compiler.package.expr import cdiv, evaluate
from k3compiler.package.manifest import FloorRecord, LaunchStep, Manifest, Plan, WeightMap
from k3compiler.package.reader import Package
from k3compiler.package.tuning import TUNE_NAME, Candidate, TuneList, TuneShape
from k3compiler.package.writer import PackageWriter
from k3compiler.passes.lower_to_tile.builder import Kernel, Kernels
from k3compiler.passes.lower_to_tile.floors import floor_of
from k3compiler.targets.backend import BuiltKernel
from k3compiler.targets.base import TargetSpec, find_target
from k3compiler.targets.build import build_kernels
from k3compiler.targets.kernel_files import request_of, write_kernels, write_libraries
from k3compiler.targets.tuning.cost import Footprint, Launch, predict_us
from k3compiler.targets.tuning.space import axes_of, points, split
from k3compiler.targets.tuning.work import Work, work_of

Progress = Callable[[int, int], None]
Buckets = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel of the model with the schedule in force."""

    family: str
    phase: str
    params: Mapping[str, Any]
    options: Mapping[str, Any]
    origin: Origin
    launches: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate before it is built."""

    point: dict[str, int]
    kernel: Kernel


def sources_of(package: Package, phase: str) -> list[Source]:
    """The kernels that a package's plan launches, those that most layers launch first."""
    counts: dict[str, int] = {}
    for step in package.plan(phase).steps:
        if isinstance(step, LaunchStep):
            counts[step.launch] = counts.get(step.launch, 0) + 1
    found = [
        Source(
            kernel.family,
            phase,
            kernel.params,
            kernel.schedule,
            Origin(kernel.op, None, kernel.equation),
            counts[kernel.symbol],
        )
        for kernel in package.manifest.kernels
        if kernel.symbol in counts
    ]
    return sorted(found, key=lambda s: -s.launches)


def decode_buckets(batches: Sequence[int], context: int) -> Buckets:
    """Sizes of decode steps: so many sequences, each with ``context`` cached tokens."""
    return {str(b): {"T": b, "S": b, "CTX": context} for b in batches}


def prefill_buckets(tokens: Sequence[int]) -> Buckets:
    """Sizes of prefill steps."""
    return {str(t): {"T": t} for t in tokens}


def prepare(
    sources: Iterable[Source],
    template: Manifest,
    buckets: Mapping[str, Buckets],
    *,
    keep: int,
    out: Path,
    progress: Progress | None = None,
) -> tuple[Path, TuneList]:
    """Writes the bundle of the best ``keep`` candidates of every kernel, the present schedule among them.

    Args:
        template: the manifest of the package that the kernels are of.
        buckets: by phase.
        progress: called with (kernels built, all).

    Raises:
        K3Error: a present schedule that does not build; candidates that do not are left out.
    """
    spec, kernels = find_target(template.target.name), Kernels()
    chosen: list[tuple[Source, list[Choice]]] = []
    for source in sources:
        choices = _choices(source, buckets[source.phase], kernels, template, spec, keep)
        if len(choices) > 1:
            chosen.append((source, choices))
    needed = {c.kernel.symbol: c.kernel for _, choices in chosen for c in choices}
    present = {choices[0].kernel.symbol for _, choices in chosen}
    built = _build(list(needed.values()), present, spec, progress)
    shapes = [
        _shape(source, [c for c in choices if c.kernel.symbol in built], built, buckets, template)
        for source, choices in chosen
    ]
    made = TuneList(tuple(shapes))
    _write(out, made, kernels, built, template, spec)
    return out, made


def _choices(
    source: Source,
    buckets: Buckets,
    kernels: Kernels,
    template: Manifest,
    spec: TargetSpec,
    keep: int,
) -> list[Choice]:
    """The present schedule first, then the best by the model."""
    axes = axes_of(source.family, source.phase, source.params, source.options)
    now = {name: {**source.params, **source.options}[name] for name in axes}
    ranked: list[tuple[float, int, dict[str, int]]] = []
    programs: dict[str, _Program | None] = {}
    for point in points(axes):
        blocks, options = split(point)
        key = str(blocks)
        if key not in programs:
            programs[key] = _program(source, blocks, template)
        program = programs[key]
        if program is None or point == now:
            continue
        costs = program.costs(buckets, program.guess({**source.options, **options}, spec), spec)
        if costs:
            changed = sum(point[name] != now[name] for name in axes)
            ranked.append((_mean(costs), changed, point))
    ranked.sort(key=lambda entry: entry[:2])
    best = [now, *(point for *_, point in ranked[: max(keep - 1, 0)])]
    return [Choice(point, _kernel(source, point, kernels)) for point in best]


def _kernel(source: Source, point: Mapping[str, int], kernels: Kernels) -> Kernel:
    blocks, options = split(point)
    params, chosen = {**source.params, **blocks}, {**source.options, **options}
    return kernels.get(source.origin, source.family, params, chosen)


@dataclass(frozen=True, slots=True)
class _Program:
    """A tile program and what it does, whatever it is compiled with."""

    kernel: Kernel
    work: Work
    floor: FloorRecord
    page_tokens: int

    def guess(self, options: Mapping[str, Any], spec: TargetSpec) -> Footprint:
        return Footprint.guess(
            self.work,
            warps=options.get("num_warps", 4),
            stages=options.get("num_stages", 1),
            spec=spec,
        )

    def costs(self, buckets: Buckets, foot: Footprint, spec: TargetSpec) -> dict[str, float]:
        """µs by bucket; none for what will not fit the chip."""
        if not foot.fits(spec):
            return {}
        costs: dict[str, float] = {}
        for name, sizes in buckets.items():
            symbols = symbols_of_step(self.kernel.params, sizes, self.page_tokens)
            grid = prod(evaluate(extent, symbols) for extent in self.kernel.info.grid)
            launch = Launch(grid, evaluate(self.floor.bytes, symbols))
            costs[name] = predict_us(self.work, foot, launch, spec)
        return costs


def _program(source: Source, blocks: Mapping[str, int], template: Manifest) -> _Program | None:
    """The program with these blocks; None where the family cannot take them."""
    if any(_is_wide(source, name, size) for name, size in blocks.items()):
        return None
    try:
        kernel = Kernels().get(source.origin, source.family, {**source.params, **blocks}, {})
    except (AssertionError, K3Error):
        return None
    moe = template.config.moe
    floor = floor_of(kernel, num_experts=moe.num_experts if moe else 1)
    return _Program(kernel, work_of(kernel.text), floor, template.page_tokens)


_COVERED = {
    ("gemm", "block_k"): "K",
    ("head_gemm", "block_k"): "K",
    ("head_gemm", "block_m"): "N",
    ("mla_decode", "block_kv"): "page_tokens",
    ("moe_gate_up", "block_k"): "width",
    ("moe_gate_up", "block_n"): "inner",
    ("moe_down", "block_k"): "inner",
    ("moe_down", "block_n"): "width",
    ("kda_decode", "block_rows"): "v_dim",
    ("kda_scan", "block_rows"): "v_dim",
}


def _is_wide(source: Source, name: str, size: int) -> bool:
    """A block larger than the extent it walks over."""
    extent = source.params.get(_COVERED.get((source.family, name), ""))
    present = source.params[name]
    return extent is not None and size > present and size > extent


def symbols_of_step(
    params: Mapping[str, Any], sizes: Mapping[str, int], page_tokens: int
) -> dict[str, int]:
    """Every symbol that a grid or a floor may name, for a step of these sizes."""
    tokens, context = sizes["T"], sizes.get("CTX", 0)
    sequences = sizes.get("S", 1)
    page = params.get("page_tokens", page_tokens)
    columns = cdiv(context + max(tokens // sequences, 1), page)
    pairs = tokens * params.get("top_k", 1)
    rows = params.get("block_rows", 16)
    blocks = min(pairs, cdiv(pairs, rows) + params.get("experts", 0))
    return {
        "T": tokens,
        "S": sequences,
        "R": sequences,
        "P": columns,
        "PAGES": 1 + sequences * columns,
        "SLOTS": 1 + sequences,
        "PAGE_ROWS": page,
        "SLOT_HEADS": params.get("heads", 1),
        "SLOT_TAPS": params.get("conv_size", 4) - 1,
        "NSPLIT": cdiv(columns * page, params.get("split_tokens", page)),
        "NB": max(blocks, 1),
        "ROWS": max(blocks, 1) * rows,
        "PAIRS": pairs,
        "NC": sequences * cdiv(tokens, 64 * sequences),
        "NS": sequences * cdiv(tokens, 512 * sequences),
        "KV": sequences * context + tokens,
        "expert_first": 0,
        "vocab_first": 0,
    }


def _mean(costs: Mapping[str, float]) -> float:
    return exp(sum(log(c) for c in costs.values()) / len(costs))


def _build(
    kernels: list[Kernel], present: set[str], spec: TargetSpec, progress: Progress | None
) -> dict[str, BuiltKernel]:
    """Builds what builds; the cache keeps what was done when a refusal ends a round."""
    left = {k.symbol: k for k in kernels}
    while left:
        try:
            return dict(
                build_kernels([request_of(k) for k in left.values()], spec, progress=progress)
            )
        except K3Error as refusal:
            bad = [s for s in left if s in refusal.where]
            if not bad or bad[0] in present:
                raise
            del left[bad[0]]
    return {}


def _shape(
    source: Source,
    choices: list[Choice],
    built: Mapping[str, BuiltKernel],
    buckets: Mapping[str, Buckets],
    template: Manifest,
) -> TuneShape:
    sizes = buckets[source.phase]
    candidates = tuple(
        Candidate(c.kernel.symbol, dict(c.point), _predicted(c, source, built, template, sizes))
        for c in choices
    )
    dims = {k: v for k, v in source.params.items() if k not in choices[0].point}
    return TuneShape(
        source.family,
        source.phase,
        dims,
        source.launches,
        {name: dict(s) for name, s in sizes.items()},
        choices[0].kernel.symbol,
        candidates,
        dict(source.options),
    )


def _predicted(
    choice: Choice,
    source: Source,
    built: Mapping[str, BuiltKernel],
    template: Manifest,
    buckets: Buckets,
) -> dict[str, float]:
    """µs by bucket, now that the toolchain said what the kernel takes."""
    spec, binary = find_target(template.target.name), built[choice.kernel.symbol]
    program = _program(source, split(choice.point)[0], template)
    assert program is not None, "it was built"
    return program.costs(buckets, Footprint.of_built(binary.launch, binary.resources), spec)


def _write(
    out: Path,
    made: TuneList,
    kernels: Kernels,
    built: Mapping[str, BuiltKernel],
    template: Manifest,
    spec: TargetSpec,
) -> None:
    """A package of kernels without steps, and the list."""
    with PackageWriter(out) as writer:
        records = write_kernels(writer, kernels, built, template.config, only_binaries=True)
        writer.add_json(TUNE_NAME, encode(made))
        writer.add_weights(WeightMap(()))
        bundle = replace(
            template,
            kernels=records,
            plans={p: writer.add_plan(Plan(p, (), (), (), (), ())) for p in ("prefill", "decode")},
            weights="weights.json",
            libraries=write_libraries(writer, spec, built),
            files={},
            digest="",
        )
        writer.commit(bundle)
