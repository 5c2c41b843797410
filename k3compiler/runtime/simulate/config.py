"""The simulator's configuration: one JSON object, every key with a default."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.runtime.cache.hybrid import CacheShape
from k3compiler.runtime.scheduler.continuous import Limits, Retention

K3_TOKEN_BYTES = 24 * 576 * 2
"""Kimi K3: 24 MLA layers of (512 + 64) bf16 channels, on every rank."""

K3_STATE_BYTES = 69 * (12 * 128 * 128 * 4 + 3 * 3 * 12 * 128 * 2)
"""Kimi K3 at TP8: 69 KDA layers of 12 heads, float32 states and three bf16 conv rows of q, k, v."""

STATIC_STATE_RATIO = 0.9
"""Bytes of slots over bytes of pages in the static split (the usual default of two-pool servers)."""


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Which states are kept; see ``Retention``. ``spare`` follows ``prompt_end`` where not given."""

    prompt_end: bool = True
    second_hit: bool = True
    interval_tokens: int = 0
    generation_end: bool = True
    spare: bool | None = None


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """``width`` tokens per verify (the last one and width - 1 drafts); ``accept``: right drafts.

    A list is cycled, verify by verify of each request; a number seeds draws of 0..width-1.
    """

    width: int = 1
    accept: tuple[int, ...] | int = 0


@dataclass(frozen=True, slots=True)
class SimulateConfig:
    """What is simulated. Defaults are Kimi K3 at TP8 with 64 GiB of cache."""

    arena_bytes: int = 64 * 2**30
    mla_token_bytes: int = K3_TOKEN_BYTES
    state_bytes: int = K3_STATE_BYTES
    page_tokens: int = 64
    match_unit_tokens: int = 64
    chunk_tokens: int = 64
    max_batched_tokens: int = 8192
    max_seqs: int = 256
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    eviction: str = "value"
    memory: str = "unified"
    host_bytes: int = 0
    max_model_tokens: int = 1_048_576
    prefix_cache: bool = True
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        _require(self.host_bytes >= 0, "host_bytes", "at least 0", self.host_bytes)
        chunk, unit, width = self.chunk_tokens, self.match_unit_tokens, self.speculative.width
        _require(unit % chunk == 0, "match_unit_tokens", f"a multiple of {chunk}", unit)
        budget = self.max_batched_tokens
        least = max(chunk, width)
        _require(budget >= least, "max_batched_tokens", f"at least {least}", budget)
        interval = self.retention.interval_tokens
        is_on_grid = interval >= 0 and interval % unit == 0
        _require(is_on_grid, "retention.interval_tokens", f"a multiple of {unit}, or 0", interval)
        _choice("eviction", self.eviction, ("lru", "value"))
        _choice("memory", self.memory, ("unified", "static"))
        _check_speculative(self.speculative)

    @property
    def shape(self) -> CacheShape:
        return CacheShape(
            self.arena_bytes,
            self.state_bytes,
            self.mla_token_bytes,
            self.max_seqs,
            page_tokens=self.page_tokens,
            unit=self.match_unit_tokens,
            static_slots=self._static_slots() if self.memory == "static" else None,
            host_bytes=self.host_bytes,
            eviction="lru" if self.eviction == "lru" else "value",
            prefix_cache=self.prefix_cache,
        )

    def _static_slots(self) -> int:
        states = self.arena_bytes * STATIC_STATE_RATIO / (1 + STATIC_STATE_RATIO)
        return max(1, int(states // self.state_bytes))

    @property
    def limits(self) -> Limits:
        return Limits(
            self.max_batched_tokens,
            self.max_seqs,
            self.chunk_tokens,
            self.max_model_tokens,
            self.speculative.width,
        )

    @property
    def keep(self) -> Retention:
        given = self.retention
        spare = given.prompt_end if given.spare is None else given.spare
        return Retention(
            given.prompt_end, given.second_hit, given.interval_tokens, given.generation_end, spare
        )


_POSITIVE = (
    "arena_bytes", "mla_token_bytes", "state_bytes", "page_tokens", "match_unit_tokens",
    "chunk_tokens", "max_batched_tokens", "max_seqs", "max_model_tokens",
)  # fmt: skip


def load_config(path: Path) -> SimulateConfig:
    """Read a configuration.

    Raises:
        K3Error: K3-R010 not JSON, an unknown key, a value of the wrong kind or out of range.
    """
    try:
        data = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as fault:
        raise _bad(str(path), "a JSON object", str(fault)) from None
    return parse_config(data)


def parse_config(data: Any) -> SimulateConfig:
    """A configuration from its JSON object."""
    return _build(SimulateConfig, data, "")


def _build(kind: type[Any], data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise _bad(where.rstrip(".") or "config", "a JSON object", _json(data))
    known = {f.name: f for f in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"keys: {', '.join(known)}"
            raise _bad(f"{where}{name}", "a known key", str(name), hint)
        values[name] = _value(known[name], value, f"{where}{name}")
    return kind(**values)


def _value(spec: Any, value: Any, where: str) -> Any:
    name = spec.name
    if name == "retention":
        return _build(RetentionConfig, value, "retention.")
    if name == "speculative":
        return (
            SpeculativeConfig() if value is None else _build(SpeculativeConfig, value, f"{where}.")
        )
    if name == "accept" and isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_integer(item, where) for item in value)
    default = spec.default if spec.default is not MISSING else None
    if isinstance(default, bool) or name == "spare":
        if not isinstance(value, bool):
            raise _bad(where, "true or false", _json(value))
        return value
    if isinstance(default, str):
        if not isinstance(value, str):
            raise _bad(where, "a text", _json(value))
        return value
    return 0 if value is None and name == "interval_tokens" else _integer(value, where)


def _integer(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        is_whole = isinstance(value, float) and value.is_integer()
        if not is_whole:
            raise _bad(where, "an integer", _json(value))
    return int(value)


def _check_speculative(given: SpeculativeConfig) -> None:
    _require(given.width >= 1, "speculative.width", "at least 1", given.width)
    if isinstance(given.accept, int):
        _require(given.accept >= 0, "speculative.accept", "a list, or a seed of at least 0", -1)
        return
    is_fine = bool(given.accept) and min(given.accept) >= 0
    _require(is_fine, "speculative.accept", "numbers of at least 0", str(list(given.accept)))


def _choice(name: str, found: str, allowed: tuple[str, ...]) -> None:
    _require(found in allowed, name, " or ".join(allowed), found)


def _require(condition: bool, name: str, expected: str, found: object) -> None:
    if not condition:
        raise _bad(name, expected, str(found))


def _bad(where: str, expected: str, found: str, hint: str = "") -> K3Error:
    return K3Error("K3-R010", where=where, expected=expected, found=found, hint=hint)


def _json(value: Any) -> str:
    return json.dumps(value)[:80]
