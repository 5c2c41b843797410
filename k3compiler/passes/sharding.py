"""Which of the matrices that every rank may hold whole are cut over the ranks: what is cheaper for one token.

Cutting a matrix saves reading most of it; it costs a collective where there was none, less the time for which other
work of the step goes on beside it. Rates and latencies are the target's data (targets/base.py), not measurements of
the machine at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from k3compiler.config import ModelConfig
from k3compiler.package.manifest import ShardRecord

ITEM_BYTES = 2  # of weights and activations in bfloat16


class Link(Protocol):
    """A collective of a few KB: its latency, and the bytes a second that each rank receives."""

    @property
    def latency_s(self) -> float: ...
    @property
    def bytes_per_s(self) -> float: ...


class Chip(Protocol):
    """What of a target (targets/base.py) decides: its memory's rate and its links."""

    @property
    def bytes_per_s(self) -> float | None: ...
    def link(self, ranks: int) -> Link | None: ...


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix ``[rows, columns]`` of a layer; ``moved`` bytes that each rank gives to the collective it needs.

    ``moved`` None: its partial results join a sum that is there anyway. ``cut``: the extent that is divided.
    ``beside``: bytes of other weights that are read meanwhile; a layer's are spent once.
    """

    name: str
    rows: int
    columns: int
    cut: int
    moved: int | None
    beside: int = 0


def choose_shards(config: ModelConfig, spec: Chip, tp: int) -> tuple[ShardRecord, ...]:
    """What is decided about every matrix that the model has, in the order in which they take their share of what
    goes on beside; empty where there is nothing to decide.
    """
    link = spec.link(tp)
    if tp == 1 or link is None or spec.bytes_per_s is None:
        return ()
    records: list[ShardRecord] = []
    hidden = 0.0  # seconds of work beside that are spent
    for matrix in _matrices(config, tp):
        size = matrix.rows * matrix.columns * ITEM_BYTES
        saved, whole = size * (1 - 1 / tp) / spec.bytes_per_s, 0.0
        if matrix.moved is not None:
            whole = link.latency_s + matrix.moved * (tp - 1) / link.bytes_per_s
        beside = min(max(matrix.beside / spec.bytes_per_s - hidden, 0.0), whole)
        added = whole - beside
        is_cut = added < saved and matrix.cut % tp == 0
        hidden += beside if is_cut else 0.0
        records.append(
            ShardRecord(matrix.name, is_cut, round(saved * 1e6, 2), round(added * 1e6, 2))
        )
    return tuple(records)


def _matrices(config: ModelConfig, tp: int) -> Iterator[_Matrix]:
    """In the order of what cutting saves."""
    hidden, moe, mla = config.hidden_dim, config.moe, config.mla
    shared = 3 * moe.num_shared * moe.expert_dim * hidden * ITEM_BYTES // tp if moe else 0
    if moe and moe.latent_dim is not None:
        part = moe.latent_dim // tp * ITEM_BYTES
        if moe.latent_norm:
            moved = None if moe.num_shared else hidden // tp * ITEM_BYTES
            yield _Matrix("latent_up", hidden, moe.latent_dim, moe.latent_dim, moved)
        yield _Matrix("latent_down", moe.latent_dim, hidden, moe.latent_dim, part, shared)
    if moe:
        part = moe.num_experts // tp * 4
        yield _Matrix("router", moe.num_experts, hidden, moe.num_experts, part, shared)
    if mla.q_lora_rank is not None:
        rank = mla.q_lora_rank
        yield _Matrix("q_a", rank, hidden, rank, rank // tp * ITEM_BYTES)
    rank = mla.kv_lora_rank + mla.rope_dim
    yield _Matrix("kv_a", rank, hidden, rank, rank // tp * ITEM_BYTES)
