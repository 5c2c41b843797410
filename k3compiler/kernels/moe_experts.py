"""The experts' matrices over sorted rows, and the sum of a token's experts.

A block of ``block_rows`` sorted rows belongs to one expert, so each program is a plain matrix product with
that expert's weights. Formats: ``plain`` (weights in ``dtype``), ``a16w4`` (MXFP4 weights, activations in
``dtype``), ``a8w4`` (MXFP4 weights, MXFP8 activations of mx_quantize). With ``swap`` the weights are the
left operand (few rows a block: the matrix units want at least 64 on the left, 16 on the right).
"""

from __future__ import annotations

from dataclasses import dataclass

from k3compiler.config import MX_GROUP
from k3compiler.dialects.tile.builder import Buffer, Program
from k3compiler.dialects.tile.values import Tile, dot, dot_scaled, rsqrt, where
from k3compiler.kernels.activation import gated
from k3compiler.kernels.moe_route import token_of
from k3compiler.kernels.mx_quantize import rounded_to_mxfp8, to_mxfp8

Operand = tuple[Tile, Tile | None]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Activations of one block, ``width`` columns from ``offset`` on; rows gathered by ``tokens`` if given."""

    x: Buffer
    scale: Buffer | None
    first: Tile | int
    tokens: Tile | None
    row_end: Tile
    offset: int
    width: int
    block_rows: int
    block_k: int

    @staticmethod
    def declare(
        p: Program, rows: str, *, columns: int, width: int, form: str, dtype: str
    ) -> tuple[Buffer, Buffer | None]:
        """x, and x_scale where the activations are MXFP8."""
        if form != "a8w4":
            return p.buffer("x", dtype, (rows, columns)), None
        assert columns == width, "MXFP8 rows have no columns of anything else"
        return p.buffer("x", "e4m3", (rows, width)), p.buffer(
            "x_scale", "i8", (rows, width // MX_GROUP)
        )

    def load(self, step: Tile) -> Operand:
        columns = step * self.block_k
        x = self.x.load(
            (self.first, columns + self.offset),
            (self.block_rows, self.block_k),
            rows=self.tokens,
            limits=(self.row_end, self.offset + self.width),
        )
        if self.scale is None:
            return x, None
        groups = self.block_k // MX_GROUP
        scale = self.scale.load(
            (self.first, step * groups),
            (self.block_rows, groups),
            rows=self.tokens,
            limits=(self.row_end, self.width // MX_GROUP),
        )
        return x, scale


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Stacked weights ``[experts, N, K]``, packed with scales unless the format is plain."""

    w: Buffer
    scale: Buffer | None
    block_n: int
    block_k: int

    @staticmethod
    def declare(
        p: Program,
        name: str,
        shape: tuple[int, int, int],
        *,
        form: str,
        dtype: str,
        block_n: int,
        block_k: int,
    ) -> _Matrix:
        experts, n, k = shape
        if form == "plain":
            return _Matrix(p.buffer(name, dtype, shape), None, block_n, block_k)
        packed = p.buffer(name, "i8", (experts, n, k // 2))
        scale = p.buffer(name.replace("w", "s"), "i8", (experts, n, k // MX_GROUP))
        return _Matrix(packed, scale, block_n, block_k)

    def load(self, expert: Tile, n: Tile, step: Tile) -> Operand:
        if self.scale is None:
            at = (expert, n, step * self.block_k)
            return self.w.load(at, (self.block_n, self.block_k)), None
        half, groups = self.block_k // 2, self.block_k // MX_GROUP
        w = self.w.load((expert, n, step * half), (self.block_n, half))
        return w, self.scale.load((expert, n, step * groups), (self.block_n, groups))


@dataclass(frozen=True, slots=True)
class _Product:
    """``acc + x wᵀ`` (with ``swap``: its transpose) of one step along K."""

    form: str
    dtype: str
    swap: bool

    def acc(self, p: Program, block_rows: int, block_n: int) -> Tile:
        return p.zeros((block_n, block_rows) if self.swap else (block_rows, block_n))

    def add(self, acc: Tile, rows: Operand, matrix: Operand) -> Tile:
        (x, x_scale), (w, w_scale) = rows, matrix
        if w_scale is None:
            return dot(w, x.T, acc) if self.swap else dot(x, w.T, acc)
        x_format = "e4m3" if x_scale is not None else self.dtype
        if self.swap:
            return dot_scaled(
                w, x, acc, a_format="e2m1", a_scale=w_scale, b_format=x_format, b_scale=x_scale
            )
        return dot_scaled(
            x, w, acc, a_format=x_format, a_scale=x_scale, b_format="e2m1", b_scale=w_scale
        )

    def rows_first(self, acc: Tile) -> Tile:
        """The product as ``[rows, N]``."""
        return acc.T if self.swap else acc


def moe_gate_up(
    p: Program,
    *,
    experts: int,
    inner: int,
    width: int,
    top_k: int,
    in_cols: int,
    in_offset: int,
    format: str,
    activation: str,
    beta: float | None = None,
    linear_beta: float | None = None,
    block_rows: int,
    block_n: int,
    block_k: int,
    swap: bool,
    dtype: str,
    rounds: bool = False,
) -> None:
    """``h = act(x w1ᵀ, x w3ᵀ)`` of every sorted row; programs (columns of h, block).

    Where ``dtype`` is e4m3, h is MXFP8 made from the f32 result, with h_scale ``[ROWS, inner/32]`` i8. With ``rounds``
    it is those numbers in ``dtype``.
    Row i belongs to pair ``pairs[i]`` and reads token ``pairs[i] // K``. Blocks whose block_expert is -1 write nothing.

    Shapes: x ``[T, in_cols]`` (``width`` columns from ``in_offset``; a8w4: e4m3 ``[T, width]`` and x_scale
    ``[T, width/32]`` i8); w1, w3 ``[experts, inner, width]`` (packed: i8 ``[.., width/2]`` with s1, s3 i8
    ``[.., width/32]``); pairs ``[ROWS]``, block_expert ``[NB]`` i32 -> h ``[ROWS, inner]``.
    Source: spec 5.2, 5.3, 6.
    """
    x, x_scale = _Rows.declare(p, "T", columns=in_cols, width=width, form=format, dtype=dtype)
    w1, w3 = (
        _Matrix.declare(
            p,
            name,
            (experts, inner, width),
            form=format,
            dtype=dtype,
            block_n=block_n,
            block_k=block_k,
        )
        for name in ("w1", "w3")
    )
    pairs = p.buffer("pairs", "i32", ("ROWS",))
    block_expert = p.buffer("block_expert", "i32", ("NB",))
    h = p.buffer("h", dtype, ("ROWS", inner), "w")
    is_mx = dtype == "e4m3"
    h_scale = p.buffer("h_scale", "i8", ("ROWS", inner // MX_GROUP), "w") if is_mx else None
    n, block = p.program_id(0) * block_n, p.program_id(1)
    expert, first = block_expert.load((block,)), block * block_rows
    product = _Product(format, dtype, swap)
    with p.when(expert >= 0):
        tokens = token_of(pairs.load((first,), (block_rows,), other=-1), top_k)
        rows = _Rows(x, x_scale, 0, tokens, p.symbol("T"), in_offset, width, block_rows, block_k)
        zero = product.acc(p, block_rows, block_n)
        with p.loop(0, -(-width // block_k), carry=[zero, zero]) as (step, (gate, up)):
            x_step = rows.load(step)
            p.yield_(
                product.add(gate, x_step, w1.load(expert, n, step)),
                product.add(up, x_step, w3.load(expert, n, step)),
            )
        gate, up = p.results()
        out = gated(gate, up, activation=activation, beta=beta, linear_beta=linear_beta)
        if rounds:
            rounded = rounded_to_mxfp8(product.rows_first(out), block_rows, block_n)
            h.store((first, n), rounded.to(dtype))
        elif h_scale is None:
            h.store((first, n), product.rows_first(out.to(dtype)))
        else:
            values, scale = to_mxfp8(product.rows_first(out), block_rows, block_n)
            h.store((first, n), values)
            h_scale.store((first, p.program_id(0) * (block_n // MX_GROUP)), scale)
    p.grid(f"cdiv({inner}, {block_n})", "NB")


def moe_down(
    p: Program,
    *,
    experts: int,
    inner: int,
    width: int,
    top_k: int,
    format: str,
    block_rows: int,
    block_n: int,
    block_k: int,
    block_choices: int,
    swap: bool,
    dtype: str,
    out_dtype: str,
) -> None:
    """``y[pair] = weights[pair] (h w2ᵀ)`` of every sorted row; programs (columns of y, block).

    Rows of y whose pair is not local stay unwritten. ``block_choices`` is the power of two that holds K.

    Shapes: x ``[ROWS, inner]`` (h; a8w4: e4m3, with x_scale ``[ROWS, inner/32]`` i8); w2 ``[experts, width, inner]``
    (packed: i8 ``[.., inner/2]`` with s2 i8 ``[.., inner/32]``); pairs ``[ROWS]``, block_expert ``[NB]`` i32;
    weights ``[T, K]`` f32 -> y ``[PAIRS, width]`` in ``out_dtype`` (PAIRS = T*K). Source: spec 5.2, 6.
    """
    x, x_scale = _Rows.declare(p, "ROWS", columns=inner, width=inner, form=format, dtype=dtype)
    w2 = _Matrix.declare(
        p, "w2", (experts, width, inner), form=format, dtype=dtype, block_n=block_n, block_k=block_k
    )
    pairs = p.buffer("pairs", "i32", ("ROWS",))
    block_expert = p.buffer("block_expert", "i32", ("NB",))
    weights = p.buffer("weights", "f32", ("T", top_k))
    y = p.buffer("y", out_dtype, ("PAIRS", width), "w")
    n, block = p.program_id(0) * block_n, p.program_id(1)
    expert, first = block_expert.load((block,)), block * block_rows
    product = _Product(format, dtype, swap)
    with p.when(expert >= 0):
        pair = pairs.load((first,), (block_rows,), other=-1)
        rows = _Rows(x, x_scale, first, None, first + block_rows, 0, inner, block_rows, block_k)
        with p.loop(0, -(-inner // block_k), carry=[product.acc(p, block_rows, block_n)]) as (
            step,
            (acc,),
        ):
            p.yield_(product.add(acc, rows.load(step), w2.load(expert, n, step)))
        (acc,) = p.results()
        tokens = token_of(pair, top_k)
        choice = pair - tokens * top_k
        shares = weights.load((0, 0), (block_rows, block_choices), rows=tokens)
        mine = p.arange(block_choices).expand(0).eq(choice.expand(1))
        share = where(mine, shares, 0.0).sum(1).expand(0 if swap else 1)
        out = product.rows_first((acc * share).to(out_dtype))
        y.store((0, n), out, rows=pair)
    p.grid(f"cdiv({width}, {block_n})", "NB")


def moe_combine(
    p: Program,
    *,
    experts: int,
    top_k: int,
    width: int,
    block: int,
    eps: float | None,
    in_dtype: str,
    dtype: str,
    out_dtype: str,
) -> None:
    """``r[t] = Σ_j y[t*K + j]`` over the pairs of local experts, in f32; with ``eps`` the RMSNorm of that sum.

    Other ranks' pairs are not read. The norm needs ``block`` to cover ``width``; it is right only where the sum is
    complete, so with experts on other ranks it is a launch of its own after the all-reduce.

    Shapes: y ``[PAIRS, width]`` in ``in_dtype``, ids ``[T, K]`` i32, norm_w ``[width]`` (with ``eps``) in ``dtype``
    -> r ``[T, width]`` in ``out_dtype``. Scalar: expert_first. Source: spec 5.2, trap 7, trap 26.
    """
    y = p.buffer("y", in_dtype, ("PAIRS", width))
    ids = p.buffer("ids", "i32", ("T", top_k))
    norm_w = None if eps is None else p.buffer("norm_w", dtype, (width,))
    r = p.buffer("r", out_dtype, ("T", width), "w")
    expert_first = p.scalar("expert_first")
    column, token = p.program_id(0) * block, p.program_id(1)
    total = p.zeros((block,))
    for j in range(top_k):
        local = ids.load((token, j)) - expert_first
        end = where((local >= 0) & (local < experts), p.constant(width, "i32"), 0)
        total = total + y.load((token * top_k + j, column), (block,), limits=(end,)).to("f32")
    if norm_w is not None and eps is not None:
        assert block >= width, f"moe_combine: block {block} does not cover {width} columns"
        scale = rsqrt((total * total).sum(0) / float(width) + eps)
        total = total * scale * norm_w.load((column,), (block,)).to("f32")
    r.store((token, column), total.to(out_dtype))
    p.grid(f"cdiv({width}, {block})", "T")
