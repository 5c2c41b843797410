"""Builds K3's kernels for the shapes that public peers are timed at: bench/peer_kernels.py OUT TARGET [PACKAGE...].

OUT/<part> are packages of a K3 with few layers, cut to what bench/peers_ours.py launches, a few MB together. Their
kernels are those of the whole model's package: for every PACKAGE given, it says how many are, byte for byte.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k3compiler.config import ModelConfig
from k3compiler.driver import lower_model, manifest_of
from k3compiler.graph.config_import import resolve_model
from k3compiler.package.manifest import LaunchStep, ParallelRecord, Plan, WeightMap
from k3compiler.package.reader import Package
from k3compiler.package.writer import PackageWriter
from k3compiler.passes.lower_to_tile.builder import Kernels
from k3compiler.passes.lower_to_tile.lower import Lowered, merge_params
from k3compiler.targets.base import find_target
from k3compiler.targets.build import build_kernels
from k3compiler.targets.kernel_files import LOADED, request_of, write_kernels, write_libraries
from k3compiler.targets.layouts import shuffled_params

MIX_SNAPSHOTS = (1, 2, 4, 6, 8)  # candidates less one
EXPERTS = ("moe.", "mx.")


@dataclass(frozen=True, slots=True)
class Part:
    """One package: its parallel degrees, its expert format, and the ops it is cut to."""

    tp: int
    ep: int
    moe: str
    ops: tuple[str, ...]


PARTS = {
    "tp8": Part(
        8, 8, "a16w4", ("kda.decode", "mla.decode", "mla.merge", "k3.linear", "attn_res.", *EXPERTS)
    ),
    "tp8-a8w4": Part(8, 8, "a8w4", EXPERTS),
    "tp8-slices": Part(8, 1, "a16w4", EXPERTS),
    "tp1": Part(1, 1, "a16w4", ("kda.decode", "mla.decode", "mla.merge", "k3.linear")),
}


def main() -> None:
    out = Path(sys.argv[1])
    target = sys.argv[2]
    for name, part in PARTS.items():
        count = write_part(out / name, few_layers(resolve_model("kimi-k3")[0]), part, target)
        print(f"{out / name}: {count} kernels", flush=True)
    ours = {k: d for name in PARTS for k, d in digests(out / name).items()}
    for package in sys.argv[3:]:
        theirs = digests(Path(package))
        both = ours.keys() & theirs.keys()
        same = sum(ours[k] == theirs[k] for k in both)
        print(
            f"{package}: {len(both)} of {len(theirs)} kernels are among ours, {same} with the same bytes"
        )


def digests(folder: Path) -> dict[str, str]:
    """The binary's digest of every kernel of a package, by symbol."""
    manifest = Package.open(folder).manifest
    return {
        kernel.symbol: manifest.files[kernel.files[kind]]
        for kernel in manifest.kernels
        for kind in LOADED
        if kind in kernel.files
    }


def few_layers(config: ModelConfig) -> ModelConfig:
    """Nine layers, one of them MLA, a snapshot each: every mix of up to nine candidates occurs."""
    return replace(config, num_layers=9, mla_layers=(3,), attn_res_block=1)


def write_part(folder: Path, config: ModelConfig, part: Part, target: str) -> int:
    """Lowers, cuts, builds and writes one package; returns its number of kernels."""
    spec, lowered_kernels = find_target(target), Kernels()
    moe = "a8w4" if part.moe == "a8w4" else "a16w4"
    lowered = lower_model(
        config, spec, lowered_kernels, tp=part.tp, ep=part.ep, dtype="bfloat16", moe=moe
    )
    plans = {phase: _cut(low, part.ops, lowered_kernels, phase) for phase, low in lowered.items()}
    launched = {s.launch for p in plans.values() for s in p.steps if isinstance(s, LaunchStep)}
    kernels = Kernels()
    kernels.by_key = {k: v for k, v in lowered_kernels.by_key.items() if v.symbol in launched}
    built = build_kernels([request_of(k) for k in kernels.by_key.values()], spec)
    used = {a for p in plans.values() for s in p.steps for a in s.args}
    with PackageWriter(folder) as writer:
        records = write_kernels(writer, kernels, built, config, only_binaries=True)
        params = shuffled_params(
            merge_params(lowered.values()), list(plans.values()), {r.symbol: r for r in records}
        )
        writer.add_weights(WeightMap(tuple(p for p in params if f"w:{p.name}" in used)))
        manifest = manifest_of(config, spec, "bfloat16", moe, ParallelRecord(part.tp, part.ep))
        writer.commit(
            replace(
                manifest,
                kernels=records,
                plans={phase: writer.add_plan(plan) for phase, plan in plans.items()},
                libraries=write_libraries(writer, spec, built),
            )
        )
    return len(records)


def _cut(low: Lowered, ops: Sequence[str], kernels: Kernels, phase: str) -> Plan:
    """The plan with the wanted steps only: everything in decode, the mixes in prefill; each kernel's first launch
    (of the experts' launches, the first layer's)."""
    families = {k.symbol: k for k in kernels.by_key.values()}
    is_new = _first_of_its_kind()
    steps: list[LaunchStep] = []
    for step in low.plan.steps:
        if not isinstance(step, LaunchStep) or not step.op.startswith(tuple(ops)):
            continue
        params, is_mix = families[step.launch].params, step.op.startswith("attn_res.")
        if (is_mix and not _is_wanted_mix(params)) or (phase == "prefill" and not is_mix):
            continue
        if is_new(step):
            steps.append(replace(step, stream=0, waits=()))
    names = {a for s in steps for a in s.args}
    buffers = tuple(
        replace(b, storage=None, first=None, last=None) for b in low.plan.buffers if b.name in names
    )
    return replace(low.plan, steps=tuple(steps), buffers=buffers, storage=(), outputs=(), inputs=())


def _is_wanted_mix(params: Mapping[str, Any]) -> bool:
    """The peers mix what is there: nothing is added to the running sum first."""
    return params["num_snapshots"] in MIX_SNAPSHOTS and params["delta"] == "none"


def _first_of_its_kind() -> Callable[[LaunchStep], bool]:
    """Ops that are one launch: the first with each kernel. The experts', mixes and products: whole layers."""
    seen: set[str] = set()
    expert_layers: list[int | None] = []

    def is_new(step: LaunchStep) -> bool:
        if step.op.startswith(EXPERTS):
            if not expert_layers:
                expert_layers.append(step.layer)
            return step.layer == expert_layers[0]
        is_first = step.launch not in seen
        seen.add(step.launch)
        return is_first

    return is_new


if __name__ == "__main__":
    main()
