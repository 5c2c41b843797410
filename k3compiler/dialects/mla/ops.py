"""Gated MLA as kernels: latents into pages, expanded prefill, absorbed split-KV decode."""

from collections.abc import Iterator
from typing import Any

from k3compiler.dialects.k3.dialect import FLOATS, BatchType
from k3compiler.ir.dialect import (
    Checked,
    Dialect,
    Fault,
    FloatAttr,
    IntegerAttr,
    Operand,
    Pure,
    Result,
    Tensor,
    positive,
    ranked,
    same,
    shape,
    shaped,
    typed,
    want,
)


class Mla(Dialect, name="mla"):
    """Multi-head latent attention without position encoding, one op a kernel."""


class MlaOp(Checked, dialect=Mla, traits=[Pure]):
    """Base of the mla ops."""


def _numbers(op: Any, *names: str) -> list[int]:
    return [getattr(op, name).value for name in names]


class LatentWrite(MlaOp, name="latent_write"):
    """Norms the new tokens' latents and writes ``[norm(c) | kp]`` into their pages.

    Shapes: kv_a [T, L+Dr] (columns c|kp), norm_weight [L], cache [PAGES, page_tokens, L+Dr] -> new_cache as cache.
    """

    EQUATION = "4.1,4.4"
    kv_a: Operand[Tensor]
    norm_weight: Operand[Tensor]
    cache: Operand[Tensor]
    batch: Operand[BatchType]
    eps: FloatAttr
    new_cache: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("cache", self.cache, 3)
        yield shaped("kv_a", self.kv_a, None, shape(self.cache)[-1])
        latent = shape(self.norm_weight)[0] or 0
        if latent > (shape(self.cache)[-1] or 0):
            yield f"norm_weight: expected at most {shape(self.cache)[-1]} elements, found {latent}"
        yield same("new_cache", self.cache, self.new_cache)
        yield positive("eps", self.eps.value)


class Expand(MlaOp, name="expand"):
    """Gathers the paged latents of every sequence's context and new tokens and expands them with kv_b.

    Row j is cached token ``kv_pos[j]`` of sequence ``kv_seq[j]``.

    Shapes: cache [PAGES, page_tokens, L+Dr], kv_b [H*(nope+v), L] -> kv [KV, H*(nope+v)], rope [KV, Dr].
    """

    EQUATION = "4.1"
    cache: Operand[Tensor]
    kv_b: Operand[Tensor]
    batch: Operand[BatchType]
    kv: Result[Tensor]
    rope: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("cache", self.cache, 3)
        yield ranked("kv_b", self.kv_b, 2)
        yield shaped("kv", self.kv, None, shape(self.kv_b)[0])
        rope = (shape(self.cache)[-1] or 0) - (shape(self.kv_b)[-1] or 0)
        yield shaped("rope", self.rope, None, rope)


class Prefill(MlaOp, name="prefill"):
    """Causal flash attention over expanded keys and values; the output gate is its epilogue.

    ``o = softmax(scale q [k_nope | kp]ᵀ) v``, and with a gate ``o ⊙ σ(gate)``.

    Shapes: q [T, H*(nope+rope)], kv [KV, H*(nope+v)], rope [KV, Dr], gate [T, H*v] (or none) -> o [T, H*v].
    """

    EQUATION = "4.1"
    q: Operand[Tensor]
    kv: Operand[Tensor]
    rope: Operand[Tensor]
    batch: Operand[BatchType]
    num_heads: IntegerAttr
    nope_dim: IntegerAttr
    rope_dim: IntegerAttr
    v_dim: IntegerAttr
    scale: FloatAttr
    o: Result[Tensor]
    gate: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        heads, nope, rope, v = _numbers(self, "num_heads", "nope_dim", "rope_dim", "v_dim")
        yield shaped("q", self.q, None, heads * (nope + rope))
        yield shaped("kv", self.kv, None, heads * (nope + v))
        yield shaped("rope", self.rope, None, rope)
        yield shaped("o", self.o, None, heads * v)
        yield typed("o", self.o, *FLOATS)
        yield positive("scale", self.scale.value)
        yield from _gate_faults(self)


def _gate_faults(op: Any) -> Iterator[Fault]:
    if op.gate is not None:
        yield shaped("gate", op.gate, *shape(op.o))


class AbsorbQ(MlaOp, name="absorb_q"):
    """``q_latent = [q_nope W_uk | q_rope]`` per head; W_uk are the first ``nope_dim`` rows of a head in kv_b.

    Shapes: q [S, H*(nope+rope)], kv_b [H*(nope+v), L] -> q_latent [S, H*(L+rope)].
    """

    EQUATION = "4.3"
    q: Operand[Tensor]
    kv_b: Operand[Tensor]
    num_heads: IntegerAttr
    nope_dim: IntegerAttr
    rope_dim: IntegerAttr
    q_latent: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        heads, nope, rope = _numbers(self, "num_heads", "nope_dim", "rope_dim")
        yield shaped("q", self.q, None, heads * (nope + rope))
        yield want("rows of kv_b over heads", 0, (shape(self.kv_b)[0] or 0) % max(heads, 1))
        yield shaped("q_latent", self.q_latent, None, heads * ((shape(self.kv_b)[-1] or 0) + rope))


class Decode(MlaOp, name="decode"):
    """Attention of one token a sequence among its paged latents, the context cut into ``num_splits`` parts.

    ``partial`` is each part's own softmax average of latents, ``lse`` the log of its sum of exponentials of the
    scaled scores (-inf, with partial 0, for a part without tokens). ``scale`` stays ``(nope+rope)^-0.5``.

    Shapes: q_latent [S, H*(L+rope)], cache [PAGES, page_tokens, L+rope]
    -> partial [S, num_splits, H, L] f32, lse [S, num_splits, H] f32.
    """

    EQUATION = "4.3"
    q_latent: Operand[Tensor]
    cache: Operand[Tensor]
    batch: Operand[BatchType]
    num_heads: IntegerAttr
    rope_dim: IntegerAttr
    num_splits: IntegerAttr
    scale: FloatAttr
    partial: Result[Tensor]
    lse: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        heads, rope, splits = _numbers(self, "num_heads", "rope_dim", "num_splits")
        yield ranked("cache", self.cache, 3)
        row = shape(self.cache)[-1] or 0
        yield positive("num_splits", splits)
        yield shaped("q_latent", self.q_latent, None, heads * row)
        yield shaped("partial", self.partial, None, splits, heads, row - rope)
        yield shaped("lse", self.lse, None, splits, heads)
        yield typed("partial", self.partial, "f32")
        yield typed("lse", self.lse, "f32")
        yield positive("scale", self.scale.value)


class Merge(MlaOp, name="merge"):
    """``o_latent = Σ_s e^(lse_s - m) partial_s / Σ_s e^(lse_s - m)`` over the splits.

    Shapes: partial [S, splits, H, L] f32, lse [S, splits, H] f32 -> o_latent [S, H*L].
    """

    EQUATION = "4.3"
    partial: Operand[Tensor]
    lse: Operand[Tensor]
    o_latent: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("partial", self.partial, 4)
        _, splits, heads, latent = shape(self.partial)
        yield shaped("lse", self.lse, None, splits, heads)
        yield shaped("o_latent", self.o_latent, None, (heads or 0) * (latent or 0))


class ValueUp(MlaOp, name="value_up"):
    """``o = o_latent W_uvᵀ`` per head, and with a gate ``o ⊙ σ(gate)``; W_uv are a head's last ``v_dim`` rows of kv_b.

    Shapes: o_latent [S, H*L], kv_b [H*(nope+v), L], gate [S, H*v] (or none) -> o [S, H*v].
    """

    EQUATION = "4.3"
    o_latent: Operand[Tensor]
    kv_b: Operand[Tensor]
    num_heads: IntegerAttr
    v_dim: IntegerAttr
    o: Result[Tensor]
    gate: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        heads, v = _numbers(self, "num_heads", "v_dim")
        yield shaped("o_latent", self.o_latent, None, heads * (shape(self.kv_b)[-1] or 0))
        yield want("rows of kv_b over heads", 0, (shape(self.kv_b)[0] or 0) % max(heads, 1))
        yield shaped("o", self.o, None, heads * v)
        yield from _gate_faults(self)
