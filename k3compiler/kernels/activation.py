"""The gated activations: SiTU-GLU and SwiGLU."""

from __future__ import annotations

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.values import Tile, sigmoid, silu, tanh


def gated(
    gate: Tile, up: Tile, *, activation: str, beta: float | None, linear_beta: float | None
) -> Tile:
    """The activation of f32 tiles: ``"situ"`` (up uncapped where linear_beta is None) or ``"silu"``.

    Source: spec 5.3.
    """
    if activation == "silu":
        return silu(gate) * up
    assert activation == "situ", f"activation: expected situ or silu, found {activation}"
    assert beta is not None
    capped = up if linear_beta is None else linear_beta * tanh(up / linear_beta)
    return beta * tanh(gate / beta) * sigmoid(gate) * capped


def act_mul(
    p: Program,
    *,
    cols: int,
    block: int,
    activation: str,
    beta: float | None = None,
    linear_beta: float | None = None,
    dtype: str,
) -> None:
    """out = act(gate, up) of a fused projection whose gate columns come first.

    Shapes: gu ``[T, 2 cols]``; out ``[T, cols]``. Grid: tokens, column blocks. Source: spec 5.3.
    """
    gu = p.buffer("gu", dtype, ("T", 2 * cols))
    out = p.buffer("out", dtype, ("T", cols), "w")
    t, col = p.program_id(0), p.program_id(1) * block
    gate = gu.load((t, col), (1, block), limits=(t + 1, cols)).to("f32")
    up = gu.load((t, col + cols), (1, block)).to("f32")
    value = gated(gate, up, activation=activation, beta=beta, linear_beta=linear_beta)
    out.store((t, col), value.to(dtype))
    p.grid("T", f"cdiv({cols}, {block})")
