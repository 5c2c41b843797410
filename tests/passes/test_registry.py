"""Passes by name, options, pipelines as text, and the tables."""

from __future__ import annotations

import pytest

from k3compiler.errors import K3Error
from k3compiler.passes.chunk_kda import ChunkKda
from k3compiler.passes.partition import Partition
from k3compiler.passes.pipelines import PIPELINES, LoweringOptions, pipeline
from k3compiler.passes.quantize_moe import QuantizeMoe
from k3compiler.passes.registry import PASSES, parse_pipeline, pass_class

pytestmark = pytest.mark.t1
VERBS = "chunk fuse lower convert quantize partition plan outline attach legalize verify".split()


@pytest.mark.parametrize("name", PASSES)
def test_name_class_and_verb_agree(name: str) -> None:
    found = pass_class(name)
    assert found.name == name
    assert name.partition("-")[0] in VERBS
    assert "From:" in (found.__doc__ or "") and "To:" in (found.__doc__ or "")
    assert found.from_level <= found.to_level


def test_a_pipeline_prints_as_it_is_read() -> None:
    for passes in PIPELINES.values():
        text = ",".join(str(step) for step in passes)
        assert parse_pipeline(text) == passes


def test_options_are_read() -> None:
    passes = parse_pipeline(" chunk-kda{chunk-tokens=32} , partition{tp=8,ep=none}")
    assert passes == (ChunkKda(chunk_tokens=32), Partition(tp=8, ep=None))


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("fuse-routr", "K3-P001", "fuse-router"),
        ("chunk-kda{tokens=3}", "K3-P002", "chunk-tokens"),
        ("chunk-kda{chunk-tokens=x}", "K3-P002", "a whole number"),
        ("quantize-moe{format=a4w4}", "K3-P002", "a16w4 or a8w4"),
        ("partition{tp}", "K3-P002", "option=value"),
        ("partition{tp=1", "K3-P002", "name{option=value}"),
        ("fuse-gate{a=1}", "K3-P002", "no option"),
    ],
)
def test_mistakes_are_named(text: str, code: str, expected: str) -> None:
    with pytest.raises(K3Error) as caught:
        parse_pipeline(text)
    assert caught.value.code == code
    assert expected in caught.value.expected


def test_a_misspelt_pass_gets_a_hint() -> None:
    with pytest.raises(K3Error) as caught:
        parse_pipeline("fuse-routr")
    assert caught.value.hint == "did you mean fuse-router?"


def test_a_builds_choices_reach_the_passes() -> None:
    passes = pipeline("prefill", LoweringOptions(tp=8, ep=4, moe="a8w4", chunk_tokens=32))
    assert Partition(tp=8, ep=4) in passes
    assert QuantizeMoe(format="a8w4") in passes
    assert ChunkKda(chunk_tokens=32) in passes


def test_a_pipeline_never_goes_back_a_level() -> None:
    for passes in PIPELINES.values():
        level = 1
        for step in passes:
            assert step.from_level <= level, f"{step} reads level {step.from_level} at {level}"
            assert step.to_level >= level, f"{step} makes level {step.to_level} at {level}"
            level = step.to_level
