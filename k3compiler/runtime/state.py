"""The caches as device buffers: which a package's plans use, and how large each is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from k3compiler.config import ModelConfig
from k3compiler.dtypes import itemsize
from k3compiler.package.expr import Expr, evaluate
from k3compiler.package.manifest import BufferRecord, Manifest, Plan

PAGES_STATE = "mla_cache."
STATE_PREFIXES = ("kda_state.", "kda_conv.", PAGES_STATE)


@dataclass(frozen=True, slots=True)
class StateRecord:
    """One state buffer; ``shape`` is in ``SLOTS`` or ``PAGES``."""

    name: str
    dtype: str
    shape: tuple[Expr, ...]

    def num_bytes(self, symbols: Mapping[str, int]) -> int:
        return prod(evaluate(extent, symbols) for extent in self.shape) * itemsize(self.dtype)


def is_state(name: str) -> bool:
    """Whether an argument names a cache."""
    return name.startswith(STATE_PREFIXES)


def state_records(manifest: Manifest, plans: Iterable[Plan]) -> dict[str, StateRecord]:
    """Every cache that a step of ``plans`` names.

    A plan's own ``state`` buffer gives the shape; otherwise docs/package.md, "State buffers".
    """
    records: dict[str, StateRecord] = {}
    for plan in plans:
        listed = {b.name: b for b in plan.buffers if b.kind == "state"}
        used = {a for step in plan.steps for a in step.args if is_state(a) or a in listed}
        for name in sorted(used):
            if name in listed:
                record = _from_buffer(listed[name])
            else:
                record = _from_contract(name, manifest)
            known = records.setdefault(name, record)
            assert known == record, f"plans disagree about {name}: {known}, {record}"
    return records


def _from_buffer(buffer: BufferRecord) -> StateRecord:
    return StateRecord(buffer.name, buffer.dtype, buffer.shape)


def _from_contract(name: str, manifest: Manifest) -> StateRecord:
    config: ModelConfig = manifest.config
    kind = name.split(".", maxsplit=1)[0]
    heads, width = config.kda.num_heads // manifest.parallel.tp, config.kda.head_dim
    if kind == "kda_state":
        return StateRecord(name, "f32", ("SLOTS", heads, width, width))
    if kind == "kda_conv":
        taps = config.kda.conv_size - 1
        return StateRecord(name, manifest.storage_dtype, ("SLOTS", taps, 3 * heads * width))
    row = config.mla.kv_lora_rank + config.mla.rope_dim
    return StateRecord(name, manifest.storage_dtype, ("PAGES", manifest.page_tokens, row))
