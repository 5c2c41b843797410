"""Attention Residuals: accumulate, score, softmax over the depth, mix and RMSNorm in one program."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, exp, maximum, rsqrt

Norm = tuple[int, float]  # columns, eps


def attn_res_mix_norm(
    p: Program,
    *,
    cols: int,
    block: int,
    num_snapshots: int,
    delta: str = "none",
    write_sum: bool = False,
    eps: float,
    dtype: str,
) -> None:
    """y = RMSNorm(mix(B, P_new); norm_w), where P_new follows from ``delta``.

    P_new = P (``none``), P + delta (``add``) or delta (``assign``, after a snapshot), rounded to ``dtype``.
    The mix weighs the raw candidates v_i, snapshots b0 .. b{m-1} and P_new, by a softmax over the scores
    s_i = Σ_d v_i rsqrt(mean(v_i²) + eps) res_norm res_proj; one token a program, all inside in f32.
    Shapes: b{i}, p, delta, p_out (``write_sum``: receives P_new) and y ``[T, cols]``; res_norm, res_proj
    (absent for m = 0, where mix = P_new), norm_w ``[cols]``. Source: spec 2.3, 2.4.
    """
    rows = ("T", cols)
    snapshots = [p.buffer(f"b{i}", dtype, rows) for i in range(num_snapshots)]
    names = {"none": ("p",), "add": ("p", "delta"), "assign": ("delta",)}[delta]
    sources = [p.buffer(name, dtype, rows) for name in names]
    res_norm = p.buffer("res_norm", dtype, (cols,)) if snapshots else None
    res_proj = p.buffer("res_proj", dtype, (cols,)) if snapshots else None
    norm_w = p.buffer("norm_w", dtype, (cols,))
    p_out = p.buffer("p_out", dtype, rows, "w") if write_sum else None
    y = p.buffer("y", dtype, rows, "w")
    t = p.program_id(0)
    # all rows are asked for before the first is needed: one wait instead of m
    terms = [source.load((t, 0), (1, block)) for source in sources]
    candidates = [b.load((t, 0), (1, block)) for b in snapshots]
    total = _sum(terms).to(dtype)
    if p_out is not None:
        p_out.store((t, 0), total)
    mix = total.to("f32")
    if res_norm and res_proj:
        query = _vector(res_norm, block) * _vector(res_proj, block)
        mix = _mix(mix, candidates, query, (cols, eps))
    normed = mix * _inverse_rms(mix, (cols, eps)).expand(1) * _vector(norm_w, block)
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
    first, *rest = (term.to("f32") for term in terms)
    for term in rest:
        first = first + term
    return first


def _mix(total: Tile, snapshots: list[Tile], query: Tile, norm: Norm) -> Tile:
    """The softmax over the candidates as they come, with a running maximum."""
    mix, top = total, _score(total, query, norm)
    whole = total.program.full((1,), 1.0)
    for raw in snapshots:
        v = raw.to("f32")
        s = _score(v, query, norm)
        new_top = maximum(top, s)
        fade, weight = exp(top - new_top), exp(s - new_top)
        mix = mix * fade.expand(1) + v * weight.expand(1)
        top, whole = new_top, whole * fade + weight
    return mix / whole.expand(1)


def _inverse_rms(v: Tile, norm: Norm) -> Tile:
    cols, eps = norm
    return rsqrt((v * v).sum(1) / float(cols) + eps)


def _score(v: Tile, query: Tile, norm: Norm) -> Tile:
    return (v * query).sum(1) * _inverse_rms(v, norm)
