"""The recurrence in chunks: prepare, segment maps, scan, output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from k3compiler.dialects import k3, kda
from k3compiler.ir import Pattern, rewrite_module
from k3compiler.ir.dialect import element, shape, tensor
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, has_one_use, made_by, options_of


class _Dims(NamedTuple):
    heads: int
    key: int
    value: int


def token_inputs(recurrence: Any) -> Any | None:
    """The kda.inputs that feeds all of a recurrence, gates not yet cumulative."""
    found = made_by(recurrence.q, kda.Inputs)
    if found is None or found.chunk_tokens.value != 1:
        return None
    fed = (recurrence.q, recurrence.k, recurrence.v, recurrence.g, recurrence.beta)
    made = (found.q, found.k, found.v, found.g, found.beta_out)
    return found if all(a == b for a, b in zip(fed, made, strict=True)) else None


@dataclass(frozen=True, slots=True)
class ChunkKda(Pass):
    """The chunk form of spec 3.7 with the segmented scan; the gated norm goes into the output kernel.

    From: 1 (with fuse-kda-inputs run). To: 2.

    ``kda.inputs → k3.kda_recurrence → k3.gated_rms_norm`` becomes
    ``kda.inputs{chunk} → kda.prepare → kda.segment_maps → kda.scan → kda.output``.
    """

    name: ClassVar[str] = "chunk-kda"
    chunk_tokens: int = 64

    def run(self, module: Any) -> None:
        rewrite_module(module, [Pattern(k3.GatedRmsNorm, self._chunk)])

    def _chunk(self, op: Any, rewriter: Any) -> bool:
        """Rooted at the gated norm: there its gate is at hand."""
        recurrence = made_by(op.o, k3.KdaRecurrence)
        inputs = None if recurrence is None else token_inputs(recurrence)
        if recurrence is None or inputs is None or not has_one_use(recurrence.o):
            return False
        with rewriter.ip:
            dims = _dims(recurrence)
            fed = self._cumulative(inputs)
            parts = self._prepare(recurrence, fed, dims)
            scan = _scan(recurrence, parts, dims)
            output = _output(op, parts, scan, recurrence)
        rewriter.replace_op(op, [output.y])
        rewriter.replace_op(recurrence, [output.y, output.new_state])
        return True

    def _cumulative(self, inputs: Any) -> Any:
        """The same inputs, their gates summed up over each chunk."""
        return build(
            kda.Inputs,
            inputs,
            list(inputs.operation.operands),
            [r.type for r in inputs.operation.results],
            num_heads=inputs.num_heads,
            chunk_tokens=self.chunk_tokens,
            q_scale=inputs.q_scale,
            l2_eps=inputs.l2_eps,
            **options_of(inputs, "lower_bound"),
        )

    def _prepare(self, op: Any, fed: Any, dims: _Dims) -> Any:
        rows, kind = self.chunk_tokens, element(op.q)
        by_key, by_value, square = (
            tensor(kind, None, dims.heads, rows, n) for n in (dims.key, dims.value, rows)
        )
        gamma = tensor("f32", None, dims.heads, dims.key)
        return build(
            kda.Prepare,
            op,
            [*fed.operation.results, op.batch],
            [by_key, by_value, by_key, by_key, square, gamma],
            num_heads=dims.heads,
            chunk_tokens=rows,
            **options_of(fed, "lower_bound"),
        )


def _dims(op: Any) -> _Dims:
    _, heads, value, key = shape(op.state)
    assert heads and value and key
    return _Dims(heads, key, value)


def _scan(op: Any, parts: Any, dims: _Dims) -> Any:
    """Segment maps and the scan over them."""
    heads, key, value = dims
    maps = build(
        kda.SegmentMaps,
        op,
        [parts.w, parts.u, parts.k_tail, parts.gamma, op.batch],
        [
            tensor("f32", None, heads, key),
            tensor("f32", None, heads, key, key),
            tensor("f32", None, heads, value, key),
        ],
    )
    starts = tensor("f32", None, heads, value, key)
    operands = [*maps.operation.results, op.state, op.batch]
    return build(kda.Scan, op, operands, [starts])


def _output(norm: Any, parts: Any, scan: Any, op: Any) -> Any:
    prepared = [parts.w, parts.u, parts.q_decayed, parts.k_tail, parts.m, parts.gamma]
    operands = [*prepared, scan.starts, op.state, norm.gate, norm.weight, op.batch]
    return build(kda.Output, norm, operands, [norm.y.type, op.state.type], eps=norm.eps)
