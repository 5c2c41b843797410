"""KDA token by token, and gated MLA over its cache."""

from collections.abc import Iterator

from k3compiler.dialects.k3.dialect import FLOATS, Batch, K3Op
from k3compiler.dialects.k3.pointwise import per_head
from k3compiler.ir.dialect import (
    Fault,
    FloatAttr,
    IntegerAttr,
    Operand,
    Result,
    Tensor,
    optional,
    positive,
    ranked,
    same,
    shape,
    shaped,
    typed,
    want,
)


def bound_fault(op: object) -> Fault:
    """A fault unless the optional ``lower_bound`` is in [-5, 0) (what the chunk form is safe for)."""
    bound = optional(op, "lower_bound")
    if bound is None or -5.0 <= bound < 0.0:
        return None
    return f"lower_bound: expected a number in [-5, 0), found {bound}"


class ShortConv(K3Op, name="short_conv"):
    """Depthwise causal convolution over a sequence's tokens; the last tap is the current token.

    The state holds the last W-1 inputs of every slot, oldest row first.

    Shapes: u [T, C], weight [C, W] f32, state [SLOTS, W-1, C] -> y [T, C], new_state as state.
    """

    EQUATION = "3.2"
    u: Operand[Tensor]
    weight: Operand[Tensor]
    state: Operand[Tensor]
    batch: Operand[Batch]
    y: Result[Tensor]
    new_state: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("weight", self.weight, 2)
        channels, taps = (*shape(self.weight), None, None)[:2]
        yield shaped("u", self.u, None, channels)
        yield typed("weight", self.weight, "f32")
        yield shaped("state", self.state, None, (taps or 1) - 1, channels)
        yield same("y", self.u, self.y)
        yield same("new_state", self.state, self.new_state)


class KdaGate(K3Op, name="kda_gate"):
    """Log-decay per head and key channel: ``g = L σ(exp(A_log) (f + dt_bias))`` with ``L = lower_bound``.

    Without ``lower_bound``: ``g = -exp(A_log) softplus(f + dt_bias)``.

    Shapes: f [T, H*Dk], a_log [H] f32, dt_bias [H*Dk] f32 -> g [T, H*Dk] f32.
    """

    OPTIONAL = ("lower_bound",)
    EQUATION = "3.3"
    f: Operand[Tensor]
    a_log: Operand[Tensor]
    dt_bias: Operand[Tensor]
    g: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield per_head("f", self.f, shape(self.a_log)[0] or 0)
        yield shaped("dt_bias", self.dt_bias, shape(self.f)[-1])
        yield shaped("g", self.g, *shape(self.f))
        for name in ("a_log", "dt_bias", "g"):
            yield typed(name, getattr(self, name), "f32")
        yield bound_fault(self)


class KdaRecurrence(K3Op, name="kda_recurrence"):
    """The delta rule, one token after the other: ``S ← diag(e^g) S; r = Sᵀk; S ← S + β k (v - r)ᵀ; o = Sᵀq``.

    Shapes: q, k, g [T, H*Dk], v [T, H*Dv], beta [T, H] f32, state [SLOTS, H, Dv, Dk] f32
    -> o [T, H*Dv], new_state as state.
    """

    EQUATION = "3.4"
    q: Operand[Tensor]
    k: Operand[Tensor]
    v: Operand[Tensor]
    g: Operand[Tensor]
    beta: Operand[Tensor]
    state: Operand[Tensor]
    batch: Operand[Batch]
    o: Result[Tensor]
    new_state: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("state", self.state, 4)
        _, heads, v_dim, k_dim = (*shape(self.state), 0, 0, 0, 0)[:4]
        heads = heads or 0
        for name in ("q", "k", "g"):
            yield shaped(name, getattr(self, name), None, heads * (k_dim or 0))
        yield shaped("v", self.v, None, heads * (v_dim or 0))
        yield shaped("beta", self.beta, None, heads)
        for name in ("g", "beta", "state"):
            yield typed(name, getattr(self, name), "f32")
        yield shaped("o", self.o, *shape(self.v))
        yield same("new_state", self.state, self.new_state)


class MlaCacheWrite(K3Op, name="mla_cache_write"):
    """Writes the new tokens' rows ``[latent | rope channels]`` into their pages.

    Shapes: latent [T, L] (normed), rope [T, Dr] (raw), cache [PAGES, page_tokens, L+Dr] -> new_cache as cache.
    """

    EQUATION = "4.4"
    latent: Operand[Tensor]
    rope: Operand[Tensor]
    cache: Operand[Tensor]
    batch: Operand[Batch]
    new_cache: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("cache", self.cache, 3)
        width = (shape(self.latent)[-1] or 0) + (shape(self.rope)[-1] or 0)
        yield want("cache row", width, shape(self.cache)[-1])
        yield same("new_cache", self.cache, self.new_cache)


class MlaAttention(K3Op, name="mla_attention"):
    """Causal attention over expanded latents: ``k = [W_uk c | kp]``, ``v = W_uv c``, ``scale = (nope+rope)^-0.5``.

    ``kv_b`` holds per head ``nope_dim`` rows of W_uk, then ``v_dim`` rows of W_uv. No position encoding.

    Shapes: q [T, H*(nope+rope)], kv_b [H*(nope+v), L], cache [PAGES, page_tokens, L+rope] -> o [T, H*v].
    """

    EQUATION = "4.1"
    q: Operand[Tensor]
    kv_b: Operand[Tensor]
    cache: Operand[Tensor]
    batch: Operand[Batch]
    num_heads: IntegerAttr
    nope_dim: IntegerAttr
    rope_dim: IntegerAttr
    v_dim: IntegerAttr
    scale: FloatAttr
    o: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        heads, nope, rope, v = (
            getattr(self, name).value for name in ("num_heads", "nope_dim", "rope_dim", "v_dim")
        )
        yield typed("q", self.q, *FLOATS)
        yield shaped("q", self.q, None, heads * (nope + rope))
        yield want("rows of kv_b", heads * (nope + v), shape(self.kv_b)[0])
        yield want("cache row", (shape(self.kv_b)[-1] or 0) + rope, shape(self.cache)[-1])
        yield shaped("o", self.o, None, heads * v)
        yield positive("scale", self.scale.value)
