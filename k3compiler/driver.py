"""compile(): the story of a build, from a model's name to a package directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import k3compiler
from k3compiler.config import ModelConfig
from k3compiler.draft_config import load_draft_config
from k3compiler.graph.build import build_graph
from k3compiler.graph.checkpoint import check_checkpoint, load_checkpoint_config
from k3compiler.graph.config_import import resolve_model
from k3compiler.ir.location import Origin
from k3compiler.package.manifest import (
    LaunchStep,
    Manifest,
    ParallelRecord,
    TargetRecord,
    WeightMap,
    model_digest,
)
from k3compiler.package.report import render_report
from k3compiler.package.timeline import Clock
from k3compiler.package.writer import PackageWriter
from k3compiler.passes.lower_to_tile.builder import Kernels
from k3compiler.passes.lower_to_tile.lower import Lowered, lower_to_tile, merge_params
from k3compiler.passes.pipelines import LoweringOptions, pipeline
from k3compiler.passes.sharding import choose_shards
from k3compiler.targets.backend import BuiltKernel
from k3compiler.targets.base import TargetSpec, find_target
from k3compiler.targets.build import build_kernels
from k3compiler.targets.kernel_files import request_of, write_kernels, write_libraries
from k3compiler.targets.layouts import shuffled_params
from k3compiler.targets.schedule import block_part, launch_part, schedule_for
from k3compiler.targets.tuning.prepare import Source

Phase = Literal["prefill", "decode"]
Dtype = Literal["float32", "bfloat16"]
Moe = Literal["a16w4", "a8w4"]
Progress = Callable[[str, int, int], None]
PHASES: tuple[Phase, ...] = ("prefill", "decode")


def compile_model(
    model: str,
    *,
    target: str,
    tp: int = 1,
    ep: int | None = None,
    dtype: Dtype | None = None,
    moe: Moe = "a16w4",
    draft: str | Path | None = None,
    out: Path,
    progress: Progress | None = None,
) -> Path:
    """Builds the kernel package of a model; returns its directory.

    Args:
        model: a checkpoint directory, a config.json, or a preset's name.
        target: a chip of ``k3c targets``.
        tp, ep: degrees of tensor and expert parallelism; ``ep`` defaults to ``tp``, 1 slices every expert.
        dtype: activations; default float32 on the CPU, bfloat16 on GPUs.
        moe: operand formats of packed experts, ``a16w4`` or ``a8w4``.
        draft: a DSpark draft's directory (or config.json): the package also gives what that draft reads.
        progress: called with (stage, done, total).

    Raises:
        K3Error: whatever is wrong with the model, the target or a kernel; no half package is left.
    """
    spec = find_target(target)
    config = _model_config(model)
    taps = () if draft is None else _taps(draft, config)
    with PackageWriter(out) as writer:
        precision: Dtype = dtype or spec.default_dtype
        kernels = Kernels()
        lowered = lower_model(
            config,
            spec,
            kernels,
            tp=tp,
            ep=ep or tp,
            dtype=precision,
            moe=moe,
            taps=taps,
            progress=progress,
        )
        built = _build(kernels, spec, progress)
        records = write_kernels(writer, kernels, built, config)
        plans = {phase: writer.add_plan(low.plan) for phase, low in lowered.items()}
        params = shuffled_params(
            merge_params(lowered.values()),
            [low.plan for low in lowered.values()],
            {record.symbol: record for record in records},
        )
        writer.add_weights(WeightMap(params))
        manifest = replace(
            manifest_of(config, spec, precision, moe, ParallelRecord(tp, ep or tp)),
            kernels=records,
            plans=plans,
            libraries=write_libraries(writer, spec, built),
        )
        clock = Clock(spec.bytes_per_s, {}) if spec.bytes_per_s else None
        plan_list = [low.plan for low in lowered.values()]
        report = render_report(manifest, plan_list, clock=clock)
        writer.add_text("report.html", report)
        writer.commit(manifest)
    return out


def tuning_sources(
    model: str,
    *,
    target: str,
    phase: Phase,
    tp: int = 1,
    ep: int | None = None,
    dtype: Dtype | None = None,
    moe: Moe = "a16w4",
) -> tuple[Manifest, list[Source]]:
    """The kernels that a model's package would launch in one phase, and that package's manifest without files.

    Arguments and errors are those of :func:`compile_model`.
    """
    spec, config, kernels = find_target(target), _model_config(model), Kernels()
    precision: Dtype = dtype or spec.default_dtype
    lowered = lower_model(config, spec, kernels, tp=tp, ep=ep or tp, dtype=precision, moe=moe)
    launched = [s.launch for s in lowered[phase].plan.steps if isinstance(s, LaunchStep)]
    counts = Counter(launched)
    by_symbol = {k.symbol: k for k in kernels.by_key.values()}
    sources = [
        Source(k.family, phase, k.params, k.options, Origin(k.op, None, k.equation), count)
        for k, count in ((by_symbol[symbol], count) for symbol, count in counts.most_common())
    ]
    return manifest_of(config, spec, precision, moe, ParallelRecord(tp, ep or tp)), sources


def manifest_of(
    config: ModelConfig, spec: TargetSpec, dtype: Dtype, moe: Moe, parallel: ParallelRecord
) -> Manifest:
    """A package's manifest as far as it is known before a kernel is built."""
    return Manifest(
        version=k3compiler.__version__,
        model=config.to_dict(),
        model_id=model_digest(config.to_dict()),
        target=TargetRecord(spec.name, spec.kind, spec.isa),
        dtype=dtype,
        moe=moe,
        kernels=(),
        plans={},
        parallel=replace(parallel, choices=choose_shards(config, spec, parallel.tp)),
    )


def _model_config(model: str) -> ModelConfig:
    config, checkpoint = resolve_model(model)
    if checkpoint is None:
        return config
    config = load_checkpoint_config(checkpoint)
    check_checkpoint(checkpoint, config)
    return config


def _taps(draft: str | Path, config: ModelConfig) -> tuple[int, ...]:
    """The layers whose running sums the draft reads."""
    found = load_draft_config(draft)
    found.check_target(config, where=str(draft))
    return found.target_layers


def lower_model(
    config: ModelConfig,
    spec: TargetSpec,
    kernels: Kernels,
    *,
    tp: int,
    ep: int,
    dtype: Dtype,
    moe: Moe,
    taps: Sequence[int] = (),
    progress: Progress | None = None,
) -> dict[Phase, Lowered]:
    """Both phases down to launches; their tile programs are added to ``kernels``."""

    def schedule(
        family: str, params: Mapping[str, Any], phase: str
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        chosen = schedule_for(family, {**params, "phase": phase}, spec.name)
        return block_part(chosen), launch_part(chosen)

    shard = "+".join(c.matrix for c in choose_shards(config, spec, tp) if c.is_cut)
    local = {"experts": config.moe.num_experts // ep} if config.moe else {}
    lowered: dict[Phase, Lowered] = {}
    for index, phase in enumerate(PHASES):
        module = build_graph(config, dtype, taps=taps)
        wanted = schedule("moe_sort", local, phase)[0]
        options = LoweringOptions(
            tp=tp,
            ep=ep,
            shard=shard,
            moe=moe,
            activations=wanted.get("activations", "mx"),
            block_rows=wanted.get("block_rows"),
        )
        with module.context:
            for step in pipeline(phase, options):
                step.run(module)
        lowered[phase] = lower_to_tile(module, phase, kernels, schedule)
        if progress is not None:
            progress("lower", index + 1, len(PHASES))
    return lowered


def _build(kernels: Kernels, spec: TargetSpec, progress: Progress | None) -> dict[str, BuiltKernel]:
    requests = [request_of(k) for k in kernels.by_key.values()]
    report = None if progress is None else lambda done, total: progress("kernels", done, total)
    return build_kernels(requests, spec, progress=report)
