"""The walk over a fused function: one table line an op."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from k3compiler.ir.dialect import plain, shape
from k3compiler.package.manifest import ParamRecord, Plan, Step
from k3compiler.package.pitches import pitch_of
from k3compiler.passes.lower_to_tile.basics import dtype_of
from k3compiler.passes.lower_to_tile.branches import access_of, branched
from k3compiler.passes.lower_to_tile.builder import Kernels, PlanBuilder, Scheduler
from k3compiler.passes.lower_to_tile.order import order_updates
from k3compiler.passes.lower_to_tile.refs import Ref
from k3compiler.passes.lower_to_tile.settled import check_settled
from k3compiler.passes.lower_to_tile.workspace import plan_workspace

_HERE = "k3compiler.passes.lower_to_tile"
LOWERINGS: dict[str, str] = {
    "k3.weight": f"{_HERE}.basics:weight",
    "k3.columns": f"{_HERE}.basics:columns",
    "k3.step_metadata": f"{_HERE}.basics:step_metadata",
    "k3.embed": f"{_HERE}.basics:embed",
    "k3.linear": f"{_HERE}.linear:linear",
    "k3.gated_linear": f"{_HERE}.linear:linear",
    "k3.rms_norm": f"{_HERE}.basics:rms_norm",
    "k3.norm_linear": f"{_HERE}.norm_linear:norm_linear",
    "k3.add": f"{_HERE}.basics:add",
    "k3.situ": f"{_HERE}.basics:activation",
    "k3.silu_mul": f"{_HERE}.basics:activation",
    "k3.gather_rows": f"{_HERE}.basics:gather_rows",
    "k3.argmax": f"{_HERE}.basics:argmax",
    "k3.sample": f"{_HERE}.basics:sample",
    "attn_res.mix_norm": f"{_HERE}.attention:mix_norm",
    "mla.latent_write": f"{_HERE}.attention:latent_write",
    "mla.norm_write": f"{_HERE}.attention:norm_write",
    "mla.gather": f"{_HERE}.attention:gather",
    "mla.prefill": f"{_HERE}.attention:prefill",
    "mla.absorb_q": f"{_HERE}.attention:absorb_q",
    "mla.decode": f"{_HERE}.attention:decode",
    "mla.merge": f"{_HERE}.attention:merge",
    "mla.value_up": f"{_HERE}.attention:value_up",
    "kda.inputs": f"{_HERE}.kda:inputs",
    "kda.conv_state": f"{_HERE}.kda:conv_state",
    "kda.prepare": f"{_HERE}.kda:prepare",
    "kda.segment_maps": f"{_HERE}.kda:segment_maps",
    "kda.scan": f"{_HERE}.kda:scan",
    "kda.output": f"{_HERE}.kda:output",
    "kda.decode": f"{_HERE}.kda:decode",
    "moe.route_topk": f"{_HERE}.moe:route_topk",
    "moe.sort": f"{_HERE}.moe:sort",
    "moe.route": f"{_HERE}.moe:route",
    "moe.gate_up": f"{_HERE}.moe:gate_up",
    "moe.gate_up_mx": f"{_HERE}.moe:gate_up",
    "moe.down": f"{_HERE}.moe:down",
    "moe.combine": f"{_HERE}.moe:combine",
    "mx.quantize": f"{_HERE}.moe:quantize",
    "mx.round": f"{_HERE}.moe:rounded",
    "comm.all_reduce": f"{_HERE}.basics:collective",
    "comm.all_gather": f"{_HERE}.basics:collective",
    "comm.reduce_scatter": f"{_HERE}.basics:collective",
}
"""Fused op -> "module:function"; the function takes the PlanBuilder and the op."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A phase's plan, and the parameters and states that it names."""

    plan: Plan
    params: tuple[ParamRecord, ...]
    states: Mapping[str, Ref]


def lower_to_tile(module: Any, phase: str, kernels: Kernels, schedule: Scheduler) -> Lowered:
    """Turns ``func.func @model`` of fused ops into a plan; its tile programs are added to ``kernels``.

    Args:
        module: level 2, one op a kernel, a short run of kernels, a view or a collective.
        phase: ``prefill`` or ``decode``.
        schedule: block sizes and launch options by family and dimensions.
    """
    function = next(iter(module.body.operations))
    order_updates(function)
    builder = PlanBuilder(phase, kernels, schedule)
    states = _bind_arguments(builder, function)
    params: list[ParamRecord] = []
    body = function.regions[0].blocks[0]
    for op in body.operations:
        name = op.operation.name
        if name == "func.return":
            outputs = _output_names(function, states)
            return Lowered(_finish(builder, op, states, outputs), tuple(params), states)
        assert name in LOWERINGS, f"{name} has no lowering to tile programs"
        target, _, function_name = LOWERINGS[name].partition(":")
        getattr(importlib.import_module(target), function_name)(builder, op)
        if name == "k3.weight":
            params.append(_param(op, builder.ref(op.value)))
    raise AssertionError("the model function does not return")


def _bind_arguments(builder: PlanBuilder, function: Any) -> dict[str, Ref]:
    states: dict[str, Ref] = {}
    arguments = function.regions[0].blocks[0].arguments
    for value, attributes in zip(arguments, function.attributes["arg_attrs"], strict=True):
        name = attributes["k3.name"].value
        if name == "tokens":
            builder.bind(value, Ref("tokens", "i32", ("T",)))
        elif name != "batch":
            extent = "PAGES" if name.startswith("mla_cache") else "SLOTS"
            inner = tuple(n for n in shape(value)[1:] if n is not None)
            ref = Ref(name, dtype_of(value), (extent, *inner), pitch=pitch_of(name))
            states[name] = builder.bind(value, ref)
    return states


def _param(op: Any, ref: Ref) -> ParamRecord:
    extents = tuple(int(n) for n in ref.shape)
    return ParamRecord(op.param.value, ref.dtype, extents, plain(op.source))


def _output_names(function: Any, states: Mapping[str, Ref]) -> list[str]:
    """What the function returns before the states."""
    names = [attributes["k3.name"].value for attributes in function.attributes["res_attrs"]]
    assert names[-len(states) :] == list(states), "states come last"
    return names[: -len(states)]


def _finish(
    builder: PlanBuilder, terminator: Any, states: Mapping[str, Ref], names: Sequence[str]
) -> Plan:
    """Names the outputs, checks that states are updated in place, plans the workspace."""
    returned = [builder.ref(v) for v in terminator.operands]
    outputs = {ref.name: name for ref, name in zip(returned, names, strict=False)}
    assert len(outputs) == len(names), "every output has a buffer of its own"
    assert [r.name for r in returned[len(names) :]] == list(states), "states are updated in place"
    renamed = {
        old: replace(ref, name=outputs.get(old, old)) for old, ref in builder.buffers.items()
    }
    steps = _in_branches(builder, [_renamed(step, outputs) for step in builder.steps])
    check_settled(steps, {k.symbol: k for k in builder.kernels.by_key.values()})
    records, storage = plan_workspace(steps, list(renamed.values()), tuple(outputs.values()))
    return Plan(
        phase="prefill" if builder.phase == "prefill" else "decode",
        inputs=tuple(builder.inputs),
        outputs=tuple(outputs.values()),
        buffers=records,
        storage=storage,
        steps=steps,
    )


def _in_branches(builder: PlanBuilder, steps: Sequence[Step]) -> tuple[Step, ...]:
    """A decode step's launches are too small to fill a device one by one: independent ones run beside each other."""
    if builder.phase != "decode":
        return tuple(steps)
    writes = {
        kernel.symbol: [i for i, a in enumerate(kernel.info.arguments) if a.access != "r"]
        for kernel in builder.kernels.by_key.values()
    }
    return branched(
        steps, lambda step: access_of(step, lambda s: [s.args[i] for i in writes[s.launch]])
    )


def _renamed(step: Step, names: Mapping[str, str]) -> Step:
    return replace(step, args=tuple(names.get(a, a) for a in step.args))


def merge_params(lowered: Iterable[Lowered]) -> tuple[ParamRecord, ...]:
    """The parameters of all phases, each once.

    One name means one array: phases that ask for it in different forms are a bug.
    """
    merged: dict[str, ParamRecord] = {}
    for phase in lowered:
        for param in phase.params:
            assert merged.setdefault(param.name, param) == param, f"two forms of {param.name}"
    return tuple(merged.values())
