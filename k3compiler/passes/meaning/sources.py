"""A parameter's values from checkpoint tensors, by its SOURCE (``docs/package.md``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.dialects.k3.source import Source, source_kind
from k3compiler.package.expr import evaluate

Array = NDArray[Any]


def load_source(source: Source, tensors: Mapping[str, Array], rank: int) -> Array:
    """The array a source stands for on one rank."""
    match source_kind(source):
        case "tensor":
            return _cut(tensors[source["tensor"]], source.get("slice"), rank)
        case "concat":
            parts = [load_source(part, tensors, rank) for part in source["concat"]]
            return np.concatenate(parts, axis=source["axis"])
        case "stack":
            return _stack(source["stack"], tensors, rank)
        case "reshape":
            return load_source(source["of"], tensors, rank).reshape(source["reshape"])
        case "transpose":
            return load_source(source["of"], tensors, rank).transpose(source["transpose"])
        case "pad":
            return np.pad(load_source(source["of"], tensors, rank), source["pad"])
        case _:
            raise AssertionError(f"no such source: {source}")


def _stack(stack: dict[str, Any], tensors: Mapping[str, Array], rank: int) -> Array:
    first = evaluate(stack["first"], {"rank": rank})
    names = [stack["name"].format(e=first + i) for i in range(stack["count"])]
    return np.stack([_cut(tensors[name], stack.get("slice"), rank) for name in names])


def _cut(array: Array, bounds: Sequence[Any] | None, rank: int) -> Array:
    if bounds is None:
        return array
    symbols = {"rank": rank}
    box = [
        slice(None) if b is None else slice(evaluate(b[0], symbols), evaluate(b[1], symbols))
        for b in bounds
    ]
    return array[tuple(box)]
