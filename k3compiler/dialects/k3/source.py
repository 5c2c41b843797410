"""Where a parameter comes from: the SOURCE form of ``docs/package.md`` as plain data.

A source is a dict; bounds of a slice are integers or expressions in ``rank``.
"""

from collections.abc import Sequence
from typing import Any

Source = dict[str, Any]
Bound = int | str
Slice = Sequence[Sequence[Bound] | None]

KINDS: dict[str, frozenset[str]] = {
    "tensor": frozenset({"slice"}),
    "concat": frozenset({"axis"}),
    "stack": frozenset(),
    "reshape": frozenset({"of"}),
    "transpose": frozenset({"of"}),
    "pad": frozenset({"of"}),
}
STACK_KEYS = frozenset({"name", "first", "count", "slice"})


def tensor_source(name: str, bounds: Slice | None = None) -> Source:
    """One checkpoint tensor, or a box of it."""
    cut = None if bounds is None else [None if b is None else list(b) for b in bounds]
    return {"tensor": name} | ({} if cut is None else {"slice": cut})


def concat_source(parts: Sequence[Source], axis: int = 0) -> Source:
    """Several sources one after the other."""
    return {"concat": list(parts), "axis": axis}


def stack_source(pattern: str, count: int, first: Bound = 0, bounds: Slice | None = None) -> Source:
    """``count`` tensors, ``{e}`` in the pattern counting from ``first``, along a new axis 0."""
    cut = None if bounds is None else [None if b is None else list(b) for b in bounds]
    stacked = {"name": pattern, "first": first, "count": count}
    return {"stack": stacked | ({} if cut is None else {"slice": cut})}


def reshape_source(shape: Sequence[int], of: Source) -> Source:
    """The same elements in another shape."""
    return {"reshape": list(shape), "of": of}


def source_kind(source: Source) -> str | None:
    """Which of the forms a source is, None for none or several."""
    kinds = [kind for kind in KINDS if kind in source]
    return kinds[0] if len(kinds) == 1 else None


def leaf_names(source: Source) -> list[str]:
    """Every checkpoint name (or stack pattern) that a source reads, in order."""
    match source_kind(source):
        case "tensor":
            return [source["tensor"]]
        case "stack":
            return [source["stack"]["name"]]
        case "concat":
            return [name for part in source["concat"] for name in leaf_names(part)]
        case _:
            return leaf_names(source["of"])


def source_faults(source: Any) -> list[str]:
    """What is wrong with a source's form."""
    if not isinstance(source, dict) or (kind := source_kind(source)) is None:
        return [f"source: expected exactly one of {', '.join(KINDS)}, found {source}"]
    extra = sorted(set(source) - {kind} - KINDS[kind])
    faults = [f"source: expected no {name} beside {kind}" for name in extra]
    match kind:
        case "tensor" if not isinstance(source["tensor"], str):
            faults.append(f"source tensor: expected a name, found {source['tensor']}")
        case "concat":
            faults += [fault for part in source["concat"] for fault in source_faults(part)]
        case "stack":
            keys = set(source["stack"])
            wrong = (keys - STACK_KEYS) | (STACK_KEYS - {"slice"} - keys)
            faults += [f"source stack: key {key} is missing or unknown" for key in sorted(wrong)]
        case "reshape" | "transpose" | "pad":
            faults += source_faults(source.get("of"))
        case _:
            pass
    return faults
