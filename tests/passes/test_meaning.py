"""Passes are right if a module means the same before and after (run by the interpreter, in float64)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from k3compiler.check.step_arrays import decode_arrays, prefill_arrays
from k3compiler.ir import origin_of, parse_module, print_module
from k3compiler.ir.dialect import attribute
from k3compiler.passes.meaning import interpret
from k3compiler.passes.module import operations
from k3compiler.passes.pipelines import Phase, pipeline
from k3compiler.passes.registry import parse_pipeline, run_passes
from k3compiler.reference.model import ReferenceModel
from k3compiler.runtime.step import SeqChunk
from tests.passes import cases

pytestmark = pytest.mark.t1
SAME = 1e-10
FAMILIES = ["spec", "odd", "unbounded", "linear"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@pytest.mark.parametrize("family", FAMILIES)
def test_graph_is_the_reference_model(family: str) -> None:
    case = cases.case(family, "prefill")
    reference = ReferenceModel(case.config, case.weights)
    expected = reference.forward(case.inputs["tokens"][:30])
    found = case.run(case.graph())
    assert np.abs(expected - found["logits"][:30]).max() < SAME
    assert (expected.argmax(axis=1) == found["next_token"][:30]).all()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_passes_keep_the_meaning(family: str, phase: Phase) -> None:
    case = cases.case(family, phase)
    module = case.graph()
    expected = case.run(module)
    for step in pipeline(phase, cases.OPTIONS):
        run_passes(module, [step])
        if family == "spec" or step.name == "verify-level":
            difference = cases.difference(expected, case.run(module))
            assert difference < SAME, f"{step} changed the meaning by {difference}"


@pytest.mark.parametrize("held", ["mx", "wide"])
def test_quantized_activations_change_little(held: str) -> None:
    """a8w4 is another number format: close, and not the same (one layer: nothing is routed anew)."""
    text = (Path(__file__).with_name("fuse_moe.mlir")).read_text()
    rng = np.random.default_rng(1)
    inputs: dict[str, Any] = {"arg0": rng.normal(size=(9, 64)), "arg2": rng.random((9, 2))}
    inputs["arg1"] = np.stack([rng.permutation(4)[:2] for _ in range(9)]).astype(np.int32)
    shapes = {"arg3": (4, 32, 32), "arg4": (4, 32, 32), "arg5": (4, 64, 16)}
    inputs |= {name: rng.integers(0, 256, shape).astype(np.uint8) for name, shape in shapes.items()}
    shapes = {"arg6": (4, 32, 2), "arg7": (4, 32, 2), "arg8": (4, 64, 1)}
    inputs |= {
        name: rng.integers(120, 126, shape).astype(np.uint8) for name, shape in shapes.items()
    }
    inputs["arg9"] = rng.normal(size=64)
    exact = interpret(parse_module(text), inputs, {})["result0"]
    module = parse_module(text)
    chosen = f"fuse-moe,quantize-moe{{format=a8w4,activations={held}}},fuse-requantize"
    run_passes(module, parse_pipeline(chosen))
    found = interpret(module, inputs, {})["result0"]
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert 1e-3 < error < 0.08  # .05 on average: few columns, scales six binades apart


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("family", ["spec", "linear"])
def test_a_second_run_changes_nothing(family: str, phase: Phase) -> None:
    text, _ = cases.fused(family, phase)
    module = parse_module(text)
    run_passes(module, pipeline(phase, cases.OPTIONS))
    assert print_module(module) == text


@pytest.mark.parametrize("phase", PHASES)
def test_every_fused_op_knows_its_layer_and_equation(phase: Phase) -> None:
    """What a launch record and a profile show: nothing of it is lost on the way down."""
    module = cases.case("spec", phase).graph()
    run_passes(module, pipeline(phase, cases.OPTIONS), verify_each=False)
    seen: set[int | None] = set()
    for op in operations(module):
        if op.operation.name != "func.return":
            names = str(op.location)
            origin = origin_of(op)
            assert names.startswith(f'loc("{op.operation.name}"'), names
            assert origin.equation, names
            seen.add(origin.layer)
    assert seen == {None, *range(9)}


# What is flipped inside a fused op: (phase, family, op, attribute, factor). eps is tiny, so it is made large.
FLIPS = [
    ("prefill", "spec", "kda.inputs", "q_scale", 1.01),
    ("prefill", "spec", "kda.inputs", "l2_eps", 1e4),
    ("prefill", "spec", "kda.inputs", "lower_bound", 0.8),
    ("prefill", "spec", "kda.output", "eps", 100.0),
    ("prefill", "spec", "attn_res.mix_norm", "eps", 100.0),
    ("prefill", "spec", "attn_res.mix_norm", "out_eps", 100.0),
    ("prefill", "spec", "mla.norm_write", "eps", 1e4),
    ("prefill", "spec", "mla.prefill", "scale", 1.01),
    ("prefill", "spec", "moe.route_topk", "scale", 1.01),
    ("prefill", "spec", "moe.gate_up", "beta", 1.01),
    ("prefill", "spec", "moe.gate_up", "linear_beta", 0.5),
    ("prefill", "spec", "moe.combine", "eps", 100.0),
    ("prefill", "spec", "k3.situ", "beta", 1.01),
    ("decode", "spec", "kda.decode", "q_scale", 1.01),
    ("decode", "spec", "kda.decode", "l2_eps", 1e4),
    ("decode", "spec", "kda.decode", "norm_eps", 100.0),
    ("decode", "spec", "kda.decode", "lower_bound", 0.8),
    ("decode", "spec", "mla.decode", "scale", 1.01),
    ("decode", "linear", "attn_res.mix_norm", "out_eps", 100.0),
    ("decode", "linear", "moe.route", "scale", 1.01),
]


@pytest.mark.parametrize(("phase", "family", "op_name", "name", "factor"), FLIPS)
def test_a_flipped_constant_shows(
    phase: Phase, family: str, op_name: str, name: str, factor: float
) -> None:
    case = cases.case(family, phase)
    text, expected = cases.fused(family, phase)
    module = parse_module(text)
    flipped = [op for op in operations(module) if op.operation.name == op_name]
    flipped = [op for op in flipped if name in op.operation.attributes]
    assert flipped, f"no {op_name} with {name}"
    with module.context:
        for op in flipped:
            value = op.operation.attributes[name].value
            op.operation.attributes[name] = attribute(value * factor)
    found = case.run(module)
    if name == "scale" and op_name == "moe.route_topk" and family == "spec":
        # the latent norm takes the router's scale out again, up to its eps (spec 5.2)
        assert 1e-9 < cases.difference(expected, found) < 1e-2
    else:
        assert cases.difference(expected, found) > 1e-6


SWAPS = [
    ("prefill", "kda.prepare", (0, 1)),  # q and k
    ("prefill", "kda.output", (2, 3)),  # q_decayed and k_tail
    ("prefill", "kda.segment_maps", (0, 2)),  # w and k_tail
    ("decode", "mla.merge", (1, 2)),  # top and total
    ("prefill", "moe.gate_up", (4, 5)),  # w1 and w3
]


@pytest.mark.parametrize(("phase", "op_name", "pair"), SWAPS)
def test_swapped_operands_show(phase: Phase, op_name: str, pair: tuple[int, int]) -> None:
    case = cases.case("spec", phase)
    text, expected = cases.fused("spec", phase)
    module = parse_module(text)
    op = next(op for op in operations(module) if op.operation.name == op_name)
    first, second = (op.operation.operands[i] for i in pair)
    op.operation.operands[pair[0]], op.operation.operands[pair[1]] = second, first
    assert not cases.difference(expected, case.run(module)) < 1e-6  # NaN shows too


def _uneven_inputs(decode: bool) -> dict[str, Any]:
    """Inputs of kda.mlir: Dk = 8, Dv = 4."""
    rng = np.random.default_rng(3)
    sizes = {"page_columns": 7, "page_tokens": 16}
    if decode:
        chunks = [SeqChunk([1], 5, 2, [1]), SeqChunk([1], 0, 1, [2])]
        arrays = decode_arrays(chunks, **sizes, num_rows=3)
    else:
        chunks = [SeqChunk([1] * 70, 40, 2, range(7)), SeqChunk([1] * 9, 0, 1, [2])]
        arrays = prefill_arrays(chunks, **sizes, chunk_tokens=32, segment_chunks=1)
    rows = len(arrays["tokens"])
    shapes = {
        "qkv": (rows, 40), "f": (rows, 16), "b": (rows, 2), "gate": (rows, 8), "conv": (4, 3, 40),
        "state": (4, 2, 4, 8), "taps": (40, 4), "a_log": (2,), "dt_bias": (16,), "norm": (4,),
    }  # fmt: skip
    return arrays | {name: rng.normal(size=shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("passes", "decode"),
    [("chunk-kda{chunk-tokens=32}", False), ("fuse-kda-decode", True)],
)
def test_key_and_value_widths_may_differ(passes: str, decode: bool) -> None:
    """The state is [Dv, Dk]: a transposed one cannot pass here."""
    module = parse_module((Path(__file__).with_name("kda.mlir")).read_text())
    inputs = _uneven_inputs(decode)
    expected = interpret(module, inputs, {})
    run_passes(module, parse_pipeline(f"fuse-kda-inputs,{passes}"))
    assert not any(op.operation.name.startswith("k3.kda") for op in operations(module))
    assert cases.difference(expected, interpret(module, inputs, {})) < SAME
