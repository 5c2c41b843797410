"""Linear maps of one input as one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cmp_to_key
from itertools import accumulate
from typing import Any, ClassVar

from k3compiler.dialects import comm, k3, mla, moe
from k3compiler.dialects.k3.source import concat_source
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import element, plain, shape, tensor
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, is_before, made_by, maker, users

ALIGNED = 128  # columns; wider multiples gain nothing
ALONE = ("router", "query", "gathered")


def _role(linear: Any) -> str:
    """What a map is for: only maps of one role go together; a router and a query of MLA go alone.

    MLA's kernels read the query as whole rows ``[T, H, nope+rope]``, not as columns of something wider; a collective
    takes whole buffers.
    """
    readers = users(linear.y)
    if any(isinstance(reader, comm.AllGather) for reader in readers):
        return "gathered"
    readers += [
        reader for view in readers if isinstance(view, k3.Columns) for reader in users(view.y)
    ]
    if any(isinstance(reader, k3.Situ | k3.SiluMul) for reader in readers):
        return "activation"
    if any(isinstance(reader, moe.Route | moe.RouteTopk | k3.Sigmoid) for reader in readers):
        return "router"
    if any(
        isinstance(reader, mla.Prefill | mla.AbsorbQ) and reader.q == linear.y for reader in readers
    ):
        return "query"
    return "projection"


def _group(op: Any) -> list[Any]:
    """The maps of the same input that go with this one, in program order."""
    siblings = [
        user
        for user in users(op.x)
        if isinstance(user, k3.Linear)
        and user.x == op.x
        and user.epilogue.value == "none"
        and element(user.y) == element(op.y)
        and made_by(user.weight, k3.Weight) is not None
        and _role(user) == _role(op) not in ALONE
    ]
    return sorted(siblings, key=cmp_to_key(lambda a, b: -1 if is_before(a, b) else 1))


def _alignment(linear: Any) -> int:
    """The largest power of two in the width, at most ALIGNED: narrow odd maps go last."""
    width = shape(linear.y)[-1] or 0
    return -min(width & -width, ALIGNED)


@dataclass(frozen=True, slots=True)
class FuseProjections(Pass):
    """One matrix product for the projections of one input: KDA's q, k, v, g, f_a, b; MLA's q_a, kv_a, g.

    From: 1. To: 2. Results become column views. Odd widths go last and projections are filled up with zero rows
    to a multiple of ``align``, so that every row of the result and every view starts aligned. Gate and up stay
    a pair of their own, exactly side by side; the router stays alone, and a query that MLA reads with no
    low-rank step between.

    ``k3.linear(x, w1), k3.linear(x, w2)`` becomes ``y = k3.linear(x, [w1; w2]); k3.columns(y), k3.columns(y)``.
    """

    name: ClassVar[str] = "fuse-projections"
    align: int = 16

    def run(self, module: Any) -> None:
        patterns = [Pattern(k3.Linear, self._fuse), Pattern(k3.Concat, _contiguous)]
        rewrite_module(module, patterns)

    def _fuse(self, op: Any, rewriter: Any) -> bool:
        group = _group(op)
        if len(group) < 2 or group[0].operation != op.operation:
            return False
        parts = sorted(group, key=_alignment)
        widths = [shape(part.y)[-1] or 0 for part in parts]
        with rewriter.ip:
            weight = self._weight(op, parts, sum(widths))
            kind = tensor(element(op.y), None, shape(weight)[0])
            y = build(k3.Linear, op, [op.x, weight, None], [kind], epilogue="none").y
            offsets = accumulate(widths, initial=0)
            views = [
                build(k3.Columns, part, [y], [part.y.type], offset=offset).y
                for part, offset in zip(parts, offsets, strict=False)
            ]
        for part, view in zip(parts, views, strict=True):
            rewriter.replace_op(part, [view])
        return True

    def _weight(self, op: Any, parts: list[Any], rows: int) -> Any:
        weights = [maker(part.weight, k3.Weight) for part in parts]
        source = concat_source([plain(w.source) for w in weights])
        padding = -rows % self.align if _role(op) == "projection" else 0
        if padding:
            source = {"pad": [[0, padding], [0, 0]], "of": source}
        kind = tensor(element(op.weight), rows + padding, shape(op.x)[-1])
        name = joined([w.param.value for w in weights])
        return build(k3.Weight, op, [], [kind], param=name, source=source).value


def joined(params: list[str]) -> str:
    """One name for several parameters: what they share, then what differs, joined by ``+``."""
    split = [name.split(".") for name in params]
    shared = 0
    while len({tuple(parts[: shared + 1]) for parts in split}) == 1:
        shared += 1
    return ".".join([*split[0][:shared], "+".join(".".join(parts[shared:]) for parts in split)])


def _contiguous(op: Any, rewriter: Any) -> bool:
    """Neighbouring columns of one tensor beside each other are columns of it."""
    found = [made_by(part, k3.Columns) for part in op.parts]
    parts: list[Any] = [part for part in found if part is not None]
    if not parts or len(parts) < len(found) or any(part.x != parts[0].x for part in parts):
        return False
    offset = parts[0].offset.value
    for part in parts:
        if part.offset.value != offset:
            return False
        offset += shape(part.y)[-1]
    with rewriter.ip:
        view = build(k3.Columns, op, [parts[0].x], [op.y.type], offset=parts[0].offset)
    rewriter.replace_op(op, [view.y])
    return True
