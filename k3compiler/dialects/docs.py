"""Writes docs/ops.md from the ops themselves: ``python -m k3compiler.dialects.docs docs/ops.md``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k3compiler.ir.bindings import ext
from k3compiler.ir.registry import DIALECTS, dialect_class

HEAD = """# Ops

Made by `python -m k3compiler.dialects.docs docs/ops.md` from the ops' own docstrings; do not edit.
Letters: `T` tokens, `S` sequences, `R` rows with logits, `D` width, `H` heads, `Dk`/`Dv` head dims, `N` kda chunks,
`C` chunk length, `NS` segments, `L` latent, `Dr` rope channels, `E` experts, `K` chosen experts, `F` expert width,
`NB` expert blocks. `*` = any number, `?` = one or none.
The tile dialect has a page of its own, `tile.md`.
"""
MARKS = {ext.Variadicity.single: "", ext.Variadicity.variadic: "*", ext.Variadicity.optional: "?"}


def _names(fields: list[Any]) -> str:
    return ", ".join(f"`{f.name}`{MARKS[f.variadicity]}" for f in fields) or "–"


def op_page(op: Any) -> str:
    """One op: what it computes, and its operands, attributes and results."""
    operands, attributes, results, _ = ext.partition_fields(op._fields)
    optional = [f"`{name}` (optional)" for name in op.OPTIONAL]
    given = [f"`{f.name}`" for f in attributes]
    lines = [
        f"### `{op.OPERATION_NAME}`",
        "",
        inspect.cleandoc(op.__doc__),
        "",
        f"- operands: {_names(operands)}",
        f"- attributes: {', '.join(given + optional) or '–'}",
        f"- results: {_names(results)}",
        f"- spec: {op.EQUATION}",
        "",
    ]
    return "\n".join(lines)


def pages() -> Iterator[str]:
    """The page, piece by piece."""
    yield HEAD
    for name in DIALECTS:
        if name == "tile":
            continue
        dialect = dialect_class(name)
        yield f"## {name}\n\n{inspect.cleandoc(dialect.__doc__)}\n"
        for op in dialect.operations:
            yield op_page(op)


def render() -> str:
    """The whole text of docs/ops.md."""
    return "\n".join(pages())


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
