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
    element,
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
        yield from write_faults(self)


def write_faults(op: Any) -> Iterator[Fault]:
    """Of a write of normed latents to the pages."""
    yield ranked("cache", op.cache, 3)
    yield shaped("kv_a", op.kv_a, None, shape(op.cache)[-1])
    latent = shape(op.norm_weight)[0] or 0
    if latent > (shape(op.cache)[-1] or 0):
        yield f"norm_weight: expected at most {shape(op.cache)[-1]} elements, found {latent}"
    yield same("new_cache", op.cache, op.new_cache)
    yield positive("eps", op.eps.value)


class Gather(MlaOp, name="gather"):
    """The paged rows of every sequence's context and new tokens, in one piece.

    Row ``kv_start[s] + j`` is the cache row of sequence s at position j (expanding it is a linear map with kv_b).

    Shapes: cache [PAGES, page_tokens, L+Dr] -> latent [KV, L+Dr].
    """

    EQUATION = "4.4"
    cache: Operand[Tensor]
    batch: Operand[BatchType]
    latent: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("cache", self.cache, 3)
        yield shaped("latent", self.latent, None, shape(self.cache)[-1])
        yield typed("latent", self.latent, element(self.cache))


class Prefill(MlaOp, name="prefill"):
    """Causal flash attention over expanded keys and values; the output gate is its epilogue.

    ``o = softmax(scale q [k_nope | kp]ᵀ) v``, and with a gate ``o ⊙ σ(gate)``. Of the latents only the last
    ``rope_dim`` columns (kp) are read.

    Shapes: q [T, H*(nope+rope)], kv [KV, H*(nope+v)], latent [KV, L+rope], gate [T, H*v] (or none) -> o [T, H*v].
    """

    EQUATION = "4.1"
    q: Operand[Tensor]
    kv: Operand[Tensor]
    latent: Operand[Tensor]
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
        yield ranked("latent", self.latent, 2)
        yield shaped("o", self.o, None, heads * v)
        yield typed("o", self.o, *FLOATS)
        yield positive("scale", self.scale.value)
        yield from gate_faults(self)


def gate_faults(op: Any) -> Iterator[Fault]:
    """Of an output gate that may be absent."""
    if op.gate is not None:
        yield shaped("gate", op.gate, *shape(op.o))


class AbsorbQ(MlaOp, name="absorb_q"):
    """``q_latent = q_nope W_uk`` per head; W_uk are the first ``nope_dim`` rows of a head in kv_b.

    Shapes: q [S, H*(nope+rope)], kv_b [H*(nope+v), L] -> q_latent [S, H*L].
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
        yield shaped("q_latent", self.q_latent, None, heads * (shape(self.kv_b)[-1] or 0))


class Decode(MlaOp, name="decode"):
    """Attention of one token a sequence among its paged latents, the context cut into NSPLIT parts at most.

    A part is the least multiple of ``split_tokens`` that lets NSPLIT of them hold the sequence's context.

    With ``s_j = (q_latent c_j + q_rope kp_j) scale log2(e)`` over the positions of part i: ``top = max_j s_j``,
    ``total = Σ_j 2^(s_j - top)``, ``acc = Σ_j 2^(s_j - top) c_j``. A part without tokens has top -inf, total 0 and
    an undefined acc. ``scale`` stays ``(nope+rope)^-0.5``. Of q only the last ``rope_dim`` channels of a head are read.

    Shapes: q_latent [S, H*L], q [S, H*(nope+rope)], cache [PAGES, page_tokens, L+rope]
    -> acc [S, NSPLIT, H, L] f32, top, total [S, NSPLIT, H] f32.
    """

    EQUATION = "4.3"
    q_latent: Operand[Tensor]
    q: Operand[Tensor]
    cache: Operand[Tensor]
    batch: Operand[BatchType]
    num_heads: IntegerAttr
    rope_dim: IntegerAttr
    split_tokens: IntegerAttr
    scale: FloatAttr
    acc: Result[Tensor]
    top: Result[Tensor]
    total: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        heads, rope, split = _numbers(self, "num_heads", "rope_dim", "split_tokens")
        yield ranked("cache", self.cache, 3)
        latent = (shape(self.cache)[-1] or 0) - rope
        page_tokens = shape(self.cache)[1] or 1
        if split <= 0 or split % page_tokens:
            yield f"split_tokens: expected a multiple of the page, {page_tokens}, found {split}"
        yield shaped("q_latent", self.q_latent, None, heads * latent)
        yield want("columns of q over heads", 0, (shape(self.q)[-1] or 0) % max(heads, 1))
        yield shaped("acc", self.acc, None, None, heads, latent)
        for name in ("top", "total"):
            yield shaped(name, getattr(self, name), None, None, heads)
        for name in ("acc", "top", "total"):
            yield typed(name, getattr(self, name), "f32")
        yield positive("scale", self.scale.value)


class Merge(MlaOp, name="merge"):
    """``o_latent = Σ_i 2^(top_i - m) acc_i / Σ_i 2^(top_i - m) total_i`` over the parts that hold tokens.

    Shapes: acc [S, NSPLIT, H, L] f32, top, total [S, NSPLIT, H] f32 -> o_latent [S, H*L].
    """

    EQUATION = "4.3"
    acc: Operand[Tensor]
    top: Operand[Tensor]
    total: Operand[Tensor]
    batch: Operand[BatchType]
    split_tokens: IntegerAttr
    o_latent: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("acc", self.acc, 4)
        _, _, heads, latent = shape(self.acc)
        for name in ("top", "total"):
            yield shaped(name, getattr(self, name), None, None, heads)
        yield shaped("o_latent", self.o_latent, None, (heads or 0) * (latent or 0))
        yield positive("split_tokens", self.split_tokens.value)


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
        yield from gate_faults(self)
