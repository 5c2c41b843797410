"""Finding one's way in a module: its function, named arguments and results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.ir import func


def model_function(module: Any) -> Any:
    """The function of a graph module: ``@model``, or the only one.

    Raises:
        K3Error: K3-P003 where there are several and none is the model.
    """
    functions = [op for op in module.body.operations if isinstance(op, func.FuncOp)]
    named = [f for f in functions if f.name.value == "model"] or functions
    if len(named) != 1:
        found = ", ".join(f.name.value for f in functions) or "no function"
        raise K3Error(
            "K3-P003", where="module", expected="one function, or one @model", found=found
        )
    return named[0]


def _names(function: Any, attribute: str, count: int, default: str) -> list[str]:
    given = function.operation.attributes
    dicts = list(given[attribute]) if attribute in given else [{}] * count
    return [d["k3.name"].value if "k3.name" in d else f"{default}{i}" for i, d in enumerate(dicts)]


def arguments(function: Any) -> dict[str, Any]:
    """Argument values by their ``k3.name`` (``arg0``, ... without one)."""
    values = list(function.entry_block.arguments)
    return dict(zip(_names(function, "arg_attrs", len(values), "arg"), values, strict=True))


def result_names(function: Any) -> list[str]:
    """Names of the results (``result0``, ... without one)."""
    return _names(function, "res_attrs", len(function.type.results), "result")


def operations(module: Any) -> Iterator[Any]:
    """Every op of the model function, in order."""
    yield from model_function(module).entry_block.operations
