"""Attention Residuals: accumulate, score, softmax over the depth, mix and RMSNorm in one program."""

from __future__ import annotations

from functools import reduce
from operator import add

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, exp, maximum, rsqrt

Norm = tuple[int, float]  # columns, eps
Mixed = tuple[
    Tile, Tile, Tile
]  # the highest score, the sum of the weights beside it, the weighted sum


def attn_res_mix_norm(
    p: Program,
    *,
    cols: int,
    block: int,
    num_snapshots: int,
    together: int = 1,
    delta: str = "none",
    write_sum: bool = False,
    eps: float,
    dtype: str,
) -> None:
    """y = RMSNorm(mix(B, P_new); norm_w), where P_new follows from ``delta``.

    P_new = P (``none``), P + delta (``add``) or delta (``assign``, after a snapshot), rounded to ``dtype``.
    The mix weighs the raw candidates v_i, snapshots b0 .. b{m-1} and P_new, by a softmax over the scores
    s_i = Σ_d v_i rsqrt(mean(v_i²) + eps) res_norm res_proj; one token a program, all inside in f32. ``together``
    snapshots are scored side by side: fewer barriers, more registers. They are old, and so is P; delta, which the
    launch before may have made, comes last.
    Shapes: b{i}, p, delta, p_out (``write_sum``: receives P_new) and y ``[T, cols]``; res_norm, res_proj
    (absent for m = 0, where mix = P_new), norm_w ``[cols]``. Source: spec 2.3, 2.4.
    """
    rows = ("T", cols)
    snapshots = [p.settled(f"b{i}", dtype, rows) for i in range(num_snapshots)]
    names = {"none": ("p",), "add": ("p", "delta"), "assign": ("delta",)}[delta]
    declare = {"p": p.settled if len(names) > 1 else p.buffer, "delta": p.buffer}
    sources = [declare[name](name, dtype, rows) for name in names]
    res_norm = p.weight("res_norm", dtype, (cols,)) if snapshots else None
    res_proj = p.weight("res_proj", dtype, (cols,)) if snapshots else None
    norm_w = p.weight("norm_w", dtype, (cols,))
    p_out = p.buffer("p_out", dtype, rows, "w") if write_sum else None
    y = p.buffer("y", dtype, rows, "w")
    t = p.program_id(0)
    terms = [source.load((t, 0), (1, block)) for source in sources[:-1]]
    gain = _vector(norm_w, block)
    query, old = None, None
    if res_norm and res_proj:
        # all rows are asked for before the first is needed: one wait instead of m
        candidates = [b.load((t, 0), (1, block)) for b in snapshots]
        query = _vector(res_norm, block) * _vector(res_proj, block)
        old = _mix(candidates, query, (cols, eps), together)
    total = _sum([*terms, sources[-1].load((t, 0), (1, block))]).to(dtype)
    if p_out is not None:
        p_out.store((t, 0), total)
    mix = total.to("f32")
    if old is not None and query is not None:
        _, whole, mix = _merged(old, _group([total], query, (cols, eps)))
        mix = mix / whole.expand(1)
    normed = mix * _inverse_rms(mix, (cols, eps)).expand(1) * gain
    y.store((t, 0), normed.to(dtype))
    p.grid("T")


def add_norm(p: Program, *, cols: int, block: int, eps: float, dtype: str) -> None:
    """p_out = P + delta rounded to ``dtype``; y = RMSNorm(p_out; norm_w): plain pre-norm residuals.

    Shapes: p, delta, p_out, y ``[T, cols]``; norm_w ``[cols]``. One token a program. Source: spec 2.4, last line.
    """
    attn_res_mix_norm(
        p,
        cols=cols,
        block=block,
        num_snapshots=0,
        delta="add",
        write_sum=True,
        eps=eps,
        dtype=dtype,
    )


def _vector(buffer: Buffer, block: int) -> Tile:
    return buffer.load((0,), (block,)).to("f32").expand(0)


def _sum(terms: list[Tile]) -> Tile:
    return reduce(add, (term.to("f32") for term in terms))


def _mix(candidates: list[Tile], query: Tile, norm: Norm, together: int) -> Mixed:
    """The weighted sum of some candidates, scored ``together`` at a time."""
    groups = (candidates[i : i + together] for i in range(0, len(candidates), together))
    return reduce(_merged, (_group(group, query, norm) for group in groups))


def _merged(one: Mixed, other: Mixed) -> Mixed:
    """Two groups as one, with weights beside the higher of their highest scores."""
    (top, whole, mix), (high, more, part) = one, other
    new_top = maximum(top, high)
    fade, grow = exp(top - new_top), exp(high - new_top)
    mix = mix * fade.expand(1) + part * grow.expand(1)
    return new_top, whole * fade + more * grow, mix


def _group(raw: list[Tile], query: Tile, norm: Norm) -> Mixed:
    """The highest score of some candidates, the sum of their weights and their weighted sum."""
    wide = [v.to("f32") for v in raw]
    scores = _scores(wide, query, norm)
    top = reduce(maximum, scores)
    weights = [exp(s - top) for s in scores]
    parts = (v * w.expand(1) for v, w in zip(wide, weights, strict=True))
    return top, reduce(add, weights), reduce(add, parts)


def _scores(candidates: list[Tile], query: Tile, norm: Norm) -> list[Tile]:
    """The reductions of all candidates side by side, so that they wait for each other once."""
    cols, eps = norm
    addends = [w for v in candidates for w in (v * query, v * v)]
    sums = [w.sum(1) for w in addends]
    pairs = zip(sums[::2], sums[1::2], strict=True)
    return [dots * rsqrt(squares / float(cols) + eps) for dots, squares in pairs]


def _inverse_rms(v: Tile, norm: Norm) -> Tile:
    cols, eps = norm
    return rsqrt((v * v).sum(1) / float(cols) + eps)
