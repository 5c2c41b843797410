"""Contexts, text, locations, verification and the rewriting driver."""

from __future__ import annotations

from typing import Any

import pytest

from k3compiler.dialects import k3
from k3compiler.errors import K3Error
from k3compiler.ir import (
    Origin,
    Pattern,
    ir,
    new_context,
    origin_of,
    parse_module,
    print_module,
    rewrite_module,
    verify_module,
)
from k3compiler.ir.dialect import attribute, emit, plain, tensor
from k3compiler.ir.registry import DIALECTS
from k3compiler.passes.module import model_function, operations

pytestmark = pytest.mark.t1

TEXT = """
func.func @f(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %0 = "k3.silu"(%x) : (tensor<?x4xf32>) -> tensor<?x4xf32> loc("k3.silu"("layers.3"("spec 3.2")))
  return %0 : tensor<?x4xf32>
}
"""


def test_every_context_has_every_dialect() -> None:
    for _ in range(2):
        context = new_context()
        assert all(context.is_dialect_loaded(name) for name in DIALECTS)


def test_text_and_locations_survive_a_round_trip() -> None:
    text = print_module(parse_module(TEXT), locations=True)
    again = parse_module(text)
    assert print_module(again, locations=True) == text
    op = next(operations(again))
    assert origin_of(op) == Origin("k3.silu", 3, "3.2")


@pytest.mark.parametrize("origin", [Origin("a.b", None, ""), Origin("a.b", 7, "3.4,3.5")])
def test_an_origin_is_read_back(origin: Origin) -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            made = emit(
                k3.Weight,
                [],
                [tensor("f32", 2)],
                origin.location(),
                param="p",
                source={"tensor": "t"},
            )
    found = origin_of(made)
    assert (found.layer, found.equation) == (origin.layer, origin.equation)


def test_a_fault_names_op_layer_and_equation() -> None:
    module = parse_module(TEXT)
    op = next(operations(module))
    with module.context:
        op.operation.attributes["extra"] = attribute(1)
    with pytest.raises(K3Error) as caught:
        verify_module(module, where="here")
    assert caught.value.code == "K3-V001"
    assert "k3.silu: attribute extra: expected one of none" in caught.value.found
    assert "k3.silu(layers.3(spec 3.2))" in caught.value.found


def test_all_faults_of_an_op_are_told() -> None:
    text = """func.func @f(%x: tensor<?x4xf32>, %w: tensor<5xf32>) -> tensor<?x4xf32> {
      %0 = "k3.rms_norm"(%x, %w) {eps = -1.0 : f64} : (tensor<?x4xf32>, tensor<5xf32>) -> tensor<?x4xf32>
      return %0 : tensor<?x4xf32> }"""
    with pytest.raises(K3Error) as caught:
        parse_module(text)
    assert "weight: expected 4, found 5; eps: expected a positive number" in caught.value.found


def test_a_rank_no_rule_can_live_with_is_a_fault() -> None:
    text = """func.func @f(%w: tensor<f32>) -> tensor<?x4xf32> {
      %0 = "k3.l2_norm"(%w) {eps = 1.0 : f64, num_heads = 1 : i64, scale = 1.0 : f64} : (tensor<f32>) -> tensor<?x4xf32>
      return %0 : tensor<?x4xf32> }"""
    with pytest.raises(K3Error, match=r"k3\.l2_norm: operands: expected tensors of the ranks"):
        parse_module(text)


def test_broken_text_is_refused() -> None:
    with pytest.raises(K3Error) as caught:
        parse_module("func.func @f(", source="x.mlir")
    assert (caught.value.code, caught.value.where) == ("K3-V002", "x.mlir")


def test_attributes_are_read_back() -> None:
    value = {"a": [None, 1, "x", 2.5, True], "b": {"c": [[0, "rank*3"], None]}}
    with new_context():
        assert plain(attribute(value)) == value


def test_a_pattern_rewrites_and_dead_ops_go() -> None:
    module = parse_module(TEXT)

    def to_sigmoid(op: Any, rewriter: Any) -> bool:
        with rewriter.ip:
            where = origin_of(op).renamed("k3.sigmoid", "3.3").location()
            made = emit(k3.Sigmoid, [op.x], [op.y.type], where)
        rewriter.replace_op(op, [made.y])
        return True

    assert rewrite_module(module, [Pattern(k3.Silu, to_sigmoid)]) == 1
    (op, _) = operations(module)
    assert origin_of(op) == Origin("k3.sigmoid", 3, "3.3")


def test_an_error_in_a_pattern_comes_through() -> None:
    def refuse(op: Any, rewriter: Any) -> bool:
        raise K3Error("K3-P003", where="pattern", expected="something else", found="this")

    with pytest.raises(K3Error, match="something else"):
        rewrite_module(parse_module(TEXT), [Pattern(k3.Silu, refuse)])


def test_two_functions_without_a_model_are_refused() -> None:
    module = parse_module(TEXT + TEXT.replace("@f", "@g"))
    with pytest.raises(K3Error, match="one function, or one @model"):
        model_function(module)
