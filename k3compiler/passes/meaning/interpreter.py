"""Runs a module of level 1 or 2 in numpy, on one rank or on several in lockstep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from k3compiler.dialects import comm, k3
from k3compiler.ir.dialect import ext, plain
from k3compiler.passes.meaning import graph_ops, kda_ops, mla_ops, moe_ops
from k3compiler.passes.meaning.sources import load_source
from k3compiler.passes.meaning.step import Step
from k3compiler.passes.module import arguments, model_function, result_names

Array = NDArray[Any]
Values = dict[Any, Any]


def interpret(
    module: Any,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array],
    *,
    dtype: DTypeLike = np.float64,
) -> dict[str, Array]:
    """Runs ``@model`` (or the only function) once.

    Args:
        inputs: step inputs and state buffers by name (``tokens``, ``seq_ctx``, ``kda_state.0``, ...).
        weights: checkpoint tensors by name.
        dtype: what floats are computed in.

    Returns:
        Results by name: ``logits``, ``next_token`` and the new states.
    """
    return interpret_ranks(module, [inputs], weights, dtype=dtype)[0]


def interpret_ranks(
    module: Any,
    inputs: Sequence[Mapping[str, Array]],
    weights: Mapping[str, Array],
    *,
    dtype: DTypeLike = np.float64,
) -> list[dict[str, Array]]:
    """The same for a partitioned module: one mapping of inputs a rank, in rank order."""
    steps = [Step(arrays, rank) for rank, arrays in enumerate(inputs)]
    function = model_function(module)
    ranks = [_bind(function, step, dtype) for step in steps]
    for op in function.entry_block.operations:
        if op.operation.name == "func.return":
            names = result_names(function)
            return [dict(zip(names, _operands(op, values), strict=True)) for values in ranks]
        _run(op, steps, ranks, weights, np.dtype(dtype))
    raise AssertionError("a function ends in func.return")


def _bind(function: Any, step: Step, dtype: DTypeLike) -> Values:
    return {
        value: None if str(value.type) == "!k3.batch" else _as_number(step.arrays[name], dtype)
        for name, value in arguments(function).items()
    }


def _as_number(array: Array, dtype: DTypeLike) -> Array:
    """Floats in ``dtype``; integers and bytes as they are."""
    return array if array.dtype.kind in "iu" else array.astype(dtype)


def _operands(op: Any, values: Values) -> list[Any]:
    return [values[operand] for operand in op.operation.operands]


def _run(
    op: Any, steps: list[Step], ranks: list[Values], weights: Mapping[str, Array], dtype: Any
) -> None:
    match op:
        case k3.Weight():
            source = plain(op.source)
            found = [[_as_number(load_source(source, weights, s.rank), dtype)] for s in steps]
            _check_weight(op, found[0][0])
        case comm.AllReduce() | comm.AllGather() | comm.ReduceScatter():
            found = _collective(op, [values[op.x] for values in ranks])
        case _:
            meaning = meanings()[type(op)]
            found = [
                _results(meaning(op, step, *grouped_operands(op, values)))
                for step, values in zip(steps, ranks, strict=True)
            ]
    for values, results in zip(ranks, found, strict=True):
        values.update(zip(op.operation.results, results, strict=True))


def _check_weight(op: Any, array: Array) -> None:
    declared = tuple(op.value.type.shape)
    assert array.shape == declared, f"{op.param.value} is {array.shape}, its type says {declared}"


def _collective(op: Any, shares: list[Array]) -> list[list[Array]]:
    if isinstance(op, comm.AllGather):
        return [[np.concatenate(shares, axis=1)]] * len(shares)
    total = np.sum(shares, axis=0)
    if isinstance(op, comm.AllReduce):
        return [[total]] * len(shares)
    return [[part] for part in np.split(total, len(shares), axis=1)]


def _results(found: Any) -> list[Array]:
    return list(found) if isinstance(found, tuple) else [found]


def grouped_operands(op: Any, values: Values) -> list[Any]:
    """One entry a declared operand: a list for a variadic one, None for an absent optional."""
    fields = ext.partition_fields(type(op)._fields)[0]
    flat = _operands(op, values)
    attributes = op.operation.attributes
    segments = "operandSegmentSizes" in attributes
    sizes = list(attributes["operandSegmentSizes"]) if segments else [1] * len(fields)
    grouped: list[Any] = []
    for field, size in zip(fields, sizes, strict=True):
        taken, flat = flat[:size], flat[size:]
        several = field.variadicity == ext.Variadicity.variadic
        grouped.append(taken if several else taken[0] if taken else None)
    return grouped


@cache
def meanings() -> dict[Any, Any]:
    """Op class -> its meaning, ``f(op, step, *operands)`` -> result or tuple of results."""
    tables = (graph_ops, kda_ops, mla_ops, moe_ops)
    return {op: meaning for table in tables for op, meaning in table.MEANINGS.items()}
