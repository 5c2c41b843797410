"""Workspace planning: buffers whose lifetimes do not overlap share memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from k3compiler.package.expr import Expr, symbols_of
from k3compiler.package.manifest import BufferRecord, Step, StorageRecord
from k3compiler.passes.lower_to_tile.refs import Ref, byte_size


@dataclass(slots=True)
class _Block:
    id: int
    bytes: Expr
    free_from: int  # first step that may take it


def plan_workspace(
    steps: Sequence[Step], buffers: Sequence[Ref], outputs: Sequence[str]
) -> tuple[tuple[BufferRecord, ...], tuple[StorageRecord, ...]]:
    """Assigns every workspace buffer a storage block, first fit by size class.

    Buffers of one class depend on the same symbols, so that the larger of two is known up to the symbols'
    values; a block is as large as the largest of its buffers. Outputs keep memory of their own.
    """
    spans = _lifetimes(steps, {b.name for b in buffers})
    blocks: list[_Block] = []
    records: list[BufferRecord] = []
    for buffer in sorted((b for b in buffers if b.name in spans), key=lambda b: spans[b.name]):
        first, last = spans[buffer.name]
        if buffer.name in outputs:
            records.append(BufferRecord(buffer.name, buffer.dtype, buffer.shape, "output", None, first, last))
            continue
        block = _take(blocks, byte_size(buffer), first)
        block.free_from = last + 1
        records.append(
            BufferRecord(buffer.name, buffer.dtype, buffer.shape, "workspace", block.id, first, last)
        )
    return tuple(records), tuple(StorageRecord(b.id, b.bytes) for b in blocks)


def _lifetimes(steps: Sequence[Step], names: set[str]) -> dict[str, tuple[int, int]]:
    spans: dict[str, tuple[int, int]] = {}
    for index, step in enumerate(steps):
        for name in step.args:
            if name in names:
                spans[name] = (spans.get(name, (index, index))[0], index)
    return spans


def _take(blocks: list[_Block], size: Expr, first: int) -> _Block:
    free = [b for b in blocks if b.free_from <= first and symbols_of(b.bytes) == symbols_of(size)]
    exact = [b for b in free if b.bytes == size]
    if exact:
        return exact[0]
    if free:
        free[0].bytes = f"max({free[0].bytes}, {size})"
        return free[0]
    blocks.append(_Block(len(blocks), size, 0))
    return blocks[-1]
