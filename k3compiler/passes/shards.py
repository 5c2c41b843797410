"""Which part of a parameter a rank holds (spec section 10, last column)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from k3compiler.config import MX_GROUP
from k3compiler.dialects.k3.source import Source, leaf_names, source_kind
from k3compiler.errors import K3Error
from k3compiler.ir.dialect import plain, shape

Cut = tuple[str, int]  # first element (an expression in rank) and count
Rule = Literal["rows", "columns", "vocabulary", "expert_rows", "expert_columns"]

# The last parts of a checkpoint name -> how it is cut; what is not here is held whole by every rank.
RULES: dict[str, Rule] = {
    "q_proj": "rows",
    "k_proj": "rows",
    "v_proj": "rows",
    "g_proj": "rows",
    "b_proj": "rows",
    "f_b_proj": "rows",
    "g_b_proj": "rows",
    "q_conv1d": "rows",
    "k_conv1d": "rows",
    "v_conv1d": "rows",
    "A_log": "rows",
    "dt_bias": "rows",
    "q_b_proj": "rows",
    "kv_b_proj": "rows",
    "o_proj": "columns",
    "gate_proj": "rows",
    "up_proj": "rows",
    "down_proj": "columns",
    "embed_tokens": "vocabulary",
    "lm_head": "vocabulary",
    "w1": "expert_rows",
    "w3": "expert_rows",
    "w2": "expert_columns",
}
# Matrices that every rank may as well hold whole; passes/sharding.py chooses among them.
CHOICES: dict[str, tuple[str, Rule]] = {
    "latent_down": ("routed_expert_down_proj", "rows"),
    "latent_up": ("routed_expert_up_proj", "columns"),
    "router": ("gate", "rows"),
    "q_a": ("q_a_proj", "rows"),
    "kv_a": ("kv_a_proj_with_mqa", "rows"),
}
LEAVES = ("weight", "weight_packed", "weight_scale")


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of a parameter.

    Attributes:
        extents: shape of the part.
        cuts: axis -> first element and count, for every axis that is cut.
    """

    extents: tuple[int, ...]
    cuts: dict[int, Cut]

    def first(self, axis: int) -> str:
        """The first element along an axis, an expression in ``rank``."""
        return self.cuts[axis][0]


def last_word(op: Any) -> str:
    """What a k3.weight's tensor is called, e.g. ``o_proj``."""
    name = leaf_names(plain(op.source))[0]
    return [word for word in name.split(".") if word not in LEAVES][-1]


def shard_of(op: Any, tp: int, ep: int, chosen: Mapping[str, Rule] | None = None) -> Shard | None:
    """The part of a k3.weight that a rank holds, None where it holds all.

    Args:
        chosen: more rules, by the last part of the name.

    Raises:
        K3Error: K3-P004 where an extent does not divide.
    """
    name, word = leaf_names(plain(op.source))[0], last_word(op)
    extents = tuple(n or 0 for n in shape(op.value))
    rule = RULES.get(word) or (chosen or {}).get(word)
    where = op.param.value
    if rule is None:
        return None
    if rule == "vocabulary":
        return None if extents[0] % tp else _cut(where, extents, {0: ("rank", tp)})
    if rule in ("rows", "columns"):
        return _cut(where, extents, {int(rule == "columns"): ("rank", tp)})
    return _expert_shard(where, extents, rule, tp, ep, name.endswith("weight_packed"))


def _expert_shard(
    where: str, extents: tuple[int, ...], rule: str, tp: int, ep: int, packed: bool
) -> Shard:
    """Experts over ep groups of ranks, their widths over the ranks of a group."""
    share = tp // ep
    cuts: dict[int, tuple[str, int]] = {}
    if ep > 1:
        cuts[0] = ("rank" if share == 1 else f"rank//{share}", ep)
    if share > 1:
        axis = 1 if rule == "expert_rows" else 2
        cuts[axis] = (f"rank%{share}" if ep > 1 else "rank", share)
        unit = MX_GROUP // 2 if packed and axis == 2 else 1
        if extents[axis] % (share * unit):
            raise _uneven(where, axis, extents[axis], share * unit)
    return _cut(where, extents, cuts)


def _cut(where: str, extents: tuple[int, ...], cuts: dict[int, tuple[str, int]]) -> Shard:
    """Equal parts along the named axes: axis -> (which part, an expression; number of parts)."""
    left = list(extents)
    found: dict[int, Cut] = {}
    for axis, (part, parts) in cuts.items():
        if extents[axis] % parts:
            raise _uneven(where, axis, extents[axis], parts)
        left[axis] = extents[axis] // parts
        found[axis] = (f"{part}*{left[axis]}", left[axis])
    return Shard(tuple(left), found)


def _uneven(where: str, axis: int, extent: int, parts: int) -> K3Error:
    return K3Error(
        "K3-P004",
        where=f"{where}, axis {axis}",
        expected=f"a multiple of {parts}",
        found=str(extent),
        hint="choose another --tp or --ep",
    )


def sliced(source: Source, shard: Shard) -> Source:
    """The source of a rank's part."""
    match source_kind(source):
        case "tensor":
            return {"tensor": source["tensor"], "slice": _bounds(source.get("slice"), shard)}
        case "concat":
            count = len(source["concat"])
            each = _part(shard, count)
            return {"concat": [sliced(p, each) for p in source["concat"]], "axis": source["axis"]}
        case "stack":
            return {"stack": _sliced_stack(source["stack"], shard)}
        case "reshape":
            return {"reshape": list(shard.extents), "of": sliced(source["of"], shard)}
        case _:
            raise AssertionError(f"no rule slices {source}")


def _part(shard: Shard, count: int) -> Shard:
    """The shard of one of several equal parts, one after the other along axis 0."""
    (first, extent) = shard.cuts[0]
    each = extent // count
    assert first == f"rank*{extent}", f"parts of {first} are not cut evenly"
    return Shard((each, *shard.extents[1:]), {0: (f"rank*{each}", each)})


def _bounds(given: list[Any] | None, shard: Shard) -> list[Any]:
    """Slice bounds; a slice that is there already (A_log's) is narrowed along its own axis."""
    if given is not None:
        axis = next(i for i, b in enumerate(given) if b is not None)
        assert given[axis][0] == 0, "only a slice from 0 is narrowed"
        return [_box(shard.cuts[0]) if i == axis else None for i in range(len(given))]
    return [_box(shard.cuts[a]) if a in shard.cuts else None for a in range(max(shard.cuts) + 1)]


def _box(cut: Cut) -> list[str]:
    first, count = cut
    return [first, f"{first}+{count}"]


def _sliced_stack(stack: dict[str, Any], shard: Shard) -> dict[str, Any]:
    found = {"name": stack["name"], "first": stack["first"], "count": shard.extents[0]}
    if 0 in shard.cuts:
        found["first"] = shard.first(0)
    inner = {axis - 1: cut for axis, cut in shard.cuts.items() if axis > 0}
    if inner:
        found["slice"] = _bounds(None, Shard(shard.extents[1:], inner))
    return found
