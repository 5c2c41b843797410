"""Workspace planning: buffers that are never alive together share memory, on whatever branches their steps are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from k3compiler.package.expr import Expr
from k3compiler.package.manifest import BufferRecord, Step, StorageRecord
from k3compiler.passes.lower_to_tile.branches import ancestors
from k3compiler.passes.lower_to_tile.refs import Ref, byte_size


@dataclass(slots=True)
class _Block:
    id: int
    symbols: str  # product of symbolic extents, "" where there is none
    factor: int  # bytes for each
    users: int = 0  # steps that touch its last buffer, as bits


def plan_workspace(
    steps: Sequence[Step], buffers: Sequence[Ref], outputs: Sequence[str]
) -> tuple[tuple[BufferRecord, ...], tuple[StorageRecord, ...]]:
    """Assigns every workspace buffer a storage block, first fit by size class.

    Buffers of one class have the same symbolic extents, so that it is known which of two is larger; a block is
    as large as the largest of its buffers. It is free for a buffer whose first step follows all that touched it.
    Outputs keep memory of their own.
    """
    names = {b.name for b in buffers}
    spans, users, before = _lifetimes(steps, names), _users(steps, names), ancestors(steps)
    blocks: list[_Block] = []
    records: list[BufferRecord] = []
    for buffer in sorted((b for b in buffers if b.name in spans), key=lambda b: spans[b.name]):
        first, last = spans[buffer.name]
        if buffer.name in outputs:
            records.append(
                BufferRecord(buffer.name, buffer.dtype, buffer.shape, "output", None, first, last)
            )
            continue
        block = _take(blocks, byte_size(buffer), before[first])
        block.users = users[buffer.name]
        records.append(
            BufferRecord(
                buffer.name, buffer.dtype, buffer.shape, "workspace", block.id, first, last
            )
        )
    return tuple(records), tuple(StorageRecord(b.id, _bytes(b)) for b in blocks)


def _lifetimes(steps: Sequence[Step], names: set[str]) -> dict[str, tuple[int, int]]:
    spans: dict[str, tuple[int, int]] = {}
    for index, step in enumerate(steps):
        for name in step.args:
            if name in names:
                spans[name] = (spans.get(name, (index, index))[0], index)
    return spans


def _users(steps: Sequence[Step], names: set[str]) -> dict[str, int]:
    users: dict[str, int] = {}
    for index, step in enumerate(steps):
        for name in names.intersection(step.args):
            users[name] = users.get(name, 0) | 1 << index
    return users


def _take(blocks: list[_Block], size: tuple[str, int], ended: int) -> _Block:
    """A free block of the buffer's class, the one whose size fits best, or a new one."""
    symbols, factor = size
    free = [b for b in blocks if not b.users & ~ended and b.symbols == symbols]
    if not free:
        blocks.append(_Block(len(blocks), symbols, factor))
        return blocks[-1]
    best = min(free, key=lambda b: (abs(b.factor - factor), b.id))
    best.factor = max(best.factor, factor)
    return best


def _bytes(block: _Block) -> Expr:
    return f"{block.symbols}*{block.factor}" if block.symbols else block.factor
