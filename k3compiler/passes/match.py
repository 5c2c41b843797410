"""The words patterns are written in: who made a value, who uses it, and building in its place."""

from __future__ import annotations

from typing import Any

from k3compiler.ir import ir, origin_of
from k3compiler.ir.dialect import emit, optional


def made_by(value: Any, op_class: Any) -> Any | None:
    """The op that makes a value, if it is of this class."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    view = owner.opview
    return view if isinstance(view, op_class) else None


def maker(value: Any, op_class: Any) -> Any:
    """The op that makes a value, where it must be of this class."""
    made = made_by(value, op_class)
    assert made is not None, f"{value} is not made by {op_class.OPERATION_NAME}"
    return made


def users(value: Any) -> list[Any]:
    """The ops that use a value, in no particular order."""
    return [use.owner.opview for use in value.uses]


def has_one_use(value: Any) -> bool:
    return len(list(value.uses)) == 1


def only_user(value: Any, op_class: Any) -> Any | None:
    """The single user of a value, if it is of this class."""
    found = users(value)
    return found[0] if len(found) == 1 and isinstance(found[0], op_class) else None


def is_before(first: Any, second: Any) -> bool:
    """Whether ``first`` stands before ``second`` in their block."""
    return first.operation.is_before_in_block(second.operation)


def is_available(value: Any, at: Any) -> bool:
    """Whether a value is defined before an op."""
    owner = value.owner
    return isinstance(owner, ir.Block) or is_before(owner, at)


def build(
    op_class: Any, like: Any, operands: list[Any], results: list[Any], **attributes: Any
) -> Any:
    """A new op in the place of ``like``: its layer, the new op's own name and equation."""
    origin = origin_of(like).renamed(op_class.OPERATION_NAME, op_class.EQUATION)
    return emit(op_class, operands, results, origin.location(), **attributes)


def options_of(op: Any, *names: str) -> dict[str, Any]:
    """Optional attributes that are present, by name."""
    found = {name: optional(op, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}
