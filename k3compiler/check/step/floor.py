"""What a decode step of one rank must move at least: its weights once, its caches, and what the ranks exchange.

Counted from weights.json and the shapes of the caches, not from the kernels' own floors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3compiler.dtypes import itemsize
from k3compiler.package.expr import evaluate
from k3compiler.package.manifest import CollectiveStep, LaunchStep, ParamRecord, Plan
from k3compiler.package.reader import Package
from k3compiler.runtime.state import StateRecord, state_records
from k3compiler.runtime.weights import param_bytes


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one step: weights read, caches read and written."""

    weight_bytes: int
    cache_bytes: int

    @property
    def total(self) -> int:
        return self.weight_bytes + self.cache_bytes


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One kind of collective: how often a step has it, and the bytes that each rank gives to one."""

    batch: int
    collective: str
    op: str
    count: int
    bytes_each: int
    bytes_per_step: int


def step_traffic(
    package: Package, *, batch: int, context: int, experts: Mapping[int, int] | None
) -> Traffic:
    """The floor of a decode step.

    Args:
        batch: sequences, one new token each. context: tokens that each has in the caches.
        experts: by layer, how many of this rank's experts the step's tokens chose; None expects as
            many as a balanced router gives.
    """
    plan = package.plan("decode")
    used = {a for s in plan.steps for a in s.args}
    tables = _tables(plan)
    weights = 0
    for param in package.weights.params:
        if f"w:{param.name}" not in used:
            continue
        size, extent = param_bytes(param), param.shape[0]
        if param.name in tables:
            size = size // extent * min(batch, extent)
        elif _is_stack(param.source):
            chosen = (experts or {}).get(_layer_of(param), expected_experts(package, extent, batch))
            size = int(size / extent * chosen)
        weights += size
    return Traffic(weights, _cache_bytes(package, batch, context))


def expected_experts(package: Package, local: int, tokens: int) -> float:
    """Distinct experts among ``local`` of a balanced router's choices for ``tokens`` tokens."""
    moe = package.manifest.config.moe
    assert moe is not None, "a stack of experts belongs to a MoE"
    return local * (1 - (1 - moe.top_k / moe.num_experts) ** tokens)


def _tables(plan: Plan) -> set[str]:
    """Parameters of which a step reads a row a token."""
    return {
        name.removeprefix("w:")
        for step in plan.steps
        if isinstance(step, LaunchStep) and step.op == "k3.embed"
        for name in step.args
        if name.startswith("w:")
    }


def _is_stack(source: Mapping[str, Any]) -> bool:
    inner = source.get("of")
    return "stack" in source or (isinstance(inner, dict) and _is_stack(inner))


def _layer_of(param: ParamRecord) -> int:
    """``layers.12.block_sparse_moe.experts...`` is of layer 12."""
    return int(param.name.split(".")[1])


def _cache_bytes(package: Package, batch: int, context: int) -> int:
    """KDA's states are read and written whole; MLA reads every token's row and writes one."""
    manifest, total = package.manifest, 0
    for record in state_records(manifest, [package.plan("decode")]).values():
        if record.name.startswith("mla_cache"):
            row = _bytes_of(record, "PAGES") // manifest.page_tokens
            total += batch * (context + 1) * row + batch * row
        else:
            total += 2 * batch * _bytes_of(record, "SLOTS")
    return total


def _bytes_of(record: StateRecord, symbol: str) -> int:
    """Bytes of one page or slot."""
    return record.num_bytes({symbol: 1})


def collective_rows(plan: Plan, symbols: Mapping[str, int], batch: int) -> list[CollectiveRow]:
    """What the ranks would exchange, one row a kind and size, in order of first use."""
    dtypes = {b.name: b.dtype for b in plan.buffers}
    counts: dict[tuple[str, str, int], int] = {}
    for step in plan.steps:
        if isinstance(step, CollectiveStep):
            size = evaluate(step.count, symbols) * itemsize(dtypes[step.args[0]])
            key = (step.collective, step.op, size)
            counts[key] = counts.get(key, 0) + 1
    return [
        CollectiveRow(batch, kind, op, count, size, count * size)
        for (kind, op, size), count in counts.items()
    ]
