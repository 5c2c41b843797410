"""A token's two norms of low rank as one kernel."""

from collections.abc import Iterator

from k3compiler.dialects.k3.dialect import BatchType
from k3compiler.dialects.mla.ops import MlaOp, write_faults
from k3compiler.ir.dialect import Fault, FloatAttr, Operand, Result, Tensor, same, shape, shaped


class NormWrite(MlaOp, name="norm_write"):
    """Both norms of low rank at once: ``q = norm(q_a)``, and mla.latent_write.

    Shapes: q_a [T, Q], q_weight [Q], kv_a [T, L+Dr] (columns c|kp), norm_weight [L], cache [PAGES, page_tokens, L+Dr]
    -> q [T, Q], new_cache as cache.
    """

    EQUATION = "4.1,4.4"
    q_a: Operand[Tensor]
    q_weight: Operand[Tensor]
    kv_a: Operand[Tensor]
    norm_weight: Operand[Tensor]
    cache: Operand[Tensor]
    batch: Operand[BatchType]
    eps: FloatAttr
    q: Result[Tensor]
    new_cache: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield shaped("q_weight", self.q_weight, shape(self.q_a)[-1])
        yield same("q", self.q_a, self.q)
        yield from write_faults(self)
