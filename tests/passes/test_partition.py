"""A partitioned module, run on all its ranks, means what the whole one does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from k3compiler.errors import K3Error
from k3compiler.passes.meaning import interpret_ranks
from k3compiler.passes.module import operations
from k3compiler.passes.partition import Partition
from k3compiler.passes.pipelines import Phase, pipeline
from k3compiler.passes.registry import run_passes
from k3compiler.passes.shards import CHOICES
from tests.passes import cases

pytestmark = pytest.mark.t1
Array = NDArray[Any]


def shards(states: dict[str, Array], tp: int) -> list[dict[str, Array]]:
    """Each rank's state buffers: heads of the KDA states, channels of the conv states by branch."""
    return [
        {name: _share(name, value, rank, tp) for name, value in states.items()}
        for rank in range(tp)
    ]


def _share(name: str, value: Array, rank: int, tp: int) -> Array:
    if name.startswith("kda_state"):
        return np.split(value, tp, axis=1)[rank]
    if name.startswith("kda_conv"):
        branches = np.split(value, 3, axis=2)
        return np.concatenate([np.split(b, tp, axis=2)[rank] for b in branches], axis=2)
    return value


ALL = "+".join(CHOICES)


@pytest.mark.parametrize(
    ("family", "phase", "tp", "ep", "shard"),
    [
        ("spec", "prefill", 2, None, ""),
        ("wide", "prefill", 4, 2, ""),
        ("wide", "prefill", 4, 1, ""),
        ("linear", "prefill", 2, 1, ""),
        ("linear", "prefill", 2, 2, ""),
        ("spec", "prefill", 2, None, ALL),
        ("wide", "decode", 4, 1, "latent_down+latent_up"),
        ("wide", "decode", 4, 2, "latent_down+latent_up+q_a+kv_a"),
        ("linear", "decode", 2, 1, "router"),
    ],
)
def test_ranks_together_are_the_whole(
    family: str, phase: Phase, tp: int, ep: int | None, shard: str
) -> None:
    case = cases.case(family, phase)
    module = case.graph()
    whole = case.run(module)
    states = {name: value for name, value in case.inputs.items() if "." in name}
    rest = {name: value for name, value in case.inputs.items() if name not in states}
    inputs = [rest | share for share in shards(states, tp)]
    expected = shards({name: whole[name] for name in states}, tp)
    options = replace(cases.OPTIONS, tp=tp, ep=ep, shard=shard)
    for step in pipeline(phase, options):
        run_passes(module, [step])
        if step.name in ("partition", "verify-level"):
            ranks = interpret_ranks(module, inputs, case.weights)
            for found, share in zip(ranks, expected, strict=True):
                share |= {"logits": whole["logits"], "next_token": whole["next_token"]}
                assert cases.difference(share, found) < 1e-10, f"after {step}"


def test_where_the_collectives_are() -> None:
    """One sum for the embedding, one a mixer, one a dense FFN, two a MoE; the latent's before its norm."""
    case = cases.case("wide", "prefill")
    module = case.graph()
    run_passes(module, [Partition(tp=4, ep=2)])
    ops = list(operations(module))
    names = [op.operation.name for op in ops]
    layers = case.config.num_layers
    assert names.count("comm.all_reduce") == 1 + layers + 1 + 2 * (layers - 1)
    assert names.count("comm.all_gather") == 1
    for op in ops:
        if op.operation.name == "k3.experts":
            (sum_,) = [use.owner.opview for use in op.r.uses]
            assert sum_.operation.name == "comm.all_reduce"
            (norm,) = [use.owner.opview for use in sum_.y.uses]
            assert norm.operation.name == "k3.rms_norm"


@pytest.mark.parametrize(
    ("family", "tp", "ep", "where"),
    [
        ("spec", 3, None, "KDA heads"),
        ("odd", 3, None, "MLA heads"),
        ("spec", 4, None, "experts"),
        ("spec", 2, 1, "experts"),
        ("spec", 4, 3, "ep=3"),
    ],
)
def test_what_does_not_divide_is_refused(family: str, tp: int, ep: int | None, where: str) -> None:
    """10 experts over 4; an expert width of one MX group over 2; heads; ep that does not divide tp."""
    module = cases.case(family, "prefill").graph()
    with pytest.raises(K3Error) as caught:
        Partition(tp=tp, ep=ep).run(module)
    assert caught.value.code == "K3-P004"
    assert where in caught.value.where


def test_a_module_is_partitioned_once() -> None:
    module = cases.case("spec", "prefill").graph()
    run_passes(module, [Partition(tp=2)])
    with pytest.raises(K3Error, match="not partitioned yet"):
        Partition(tp=2).run(module)


def test_a_latent_norm_before_the_sum_shows() -> None:
    """The trap of spec 11.26: moving the sum behind the norm changes the numbers."""
    case = cases.case("spec", "prefill")
    module = case.graph()
    whole = case.run(module)
    run_passes(module, [Partition(tp=2)])
    for op in list(operations(module)):
        if op.operation.name == "k3.experts":
            sum_ = next(iter(op.r.uses)).owner
            norm = next(iter(sum_.results[0].uses)).owner
            norm.operands[0] = op.r
            later = norm.results[0]
            sum_.move_after(norm)
            later.replace_all_uses_except(sum_.results[0], sum_.operation)
            sum_.operands[0] = later
    states = {name: value for name, value in case.inputs.items() if "." in name}
    rest = {name: value for name, value in case.inputs.items() if name not in states}
    ranks = interpret_ranks(module, [rest | s for s in shards(states, 2)], case.weights)
    assert np.abs(ranks[0]["logits"] - whole["logits"]).max() > 1e-3
