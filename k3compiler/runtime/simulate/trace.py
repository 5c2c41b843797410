"""The simulator's trace: one request a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from k3compiler.errors import K3Error
from k3compiler.runtime.cache.unit_keys import Media, Tokens
from k3compiler.runtime.simulate.fake_model import stream_tokens

_KEYS = {
    "id", "prompt", "max_tokens", "arrival_step", "after", "continue_of", "salt", "adapter",
    "media", "priority", "abort_step", "no_cache_read",
}  # fmt: skip


Id = str | int
"""As it stands in the trace; events repeat it."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line. ``after``: it starts when that one finished; ``continues``: and begins with it.

    ``prompt`` are the given parts; with ``continues`` that request's prompt and output go before.
    """

    id: Id
    prompt: Tokens
    max_tokens: int
    arrival_step: int = 0
    after: Id | None = None
    continues: bool = False
    salt: str | None = None
    adapter: str | None = None
    media: tuple[Media, ...] = ()
    priority: int = 0
    abort_step: int | None = None
    no_cache_read: bool = False


def load_trace(path: Path) -> list[TraceRequest]:
    """Read a trace.

    Raises:
        K3Error: K3-R012 a line that is no request, a repeated id, an ``after`` that names nothing.
    """
    found: list[TraceRequest] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                found.append(_parse_line(line, f"{path}:{number}"))
    check_order(found)
    return found


def _parse_line(line: str, where: str) -> TraceRequest:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as fault:
        raise _bad(where, "a JSON object", str(fault)) from None
    return parse_request(data, where)


def parse_request(data: Any, where: str = "request") -> TraceRequest:
    """A request from its JSON object."""
    if not isinstance(data, Mapping):
        raise _bad(where, "a JSON object", json.dumps(data)[:80])
    unknown = sorted(set(data) - _KEYS)
    if unknown:
        raise _bad(where, f"keys out of {', '.join(sorted(_KEYS))}", unknown[0])
    if "id" not in data or isinstance(data["id"], bool) or not isinstance(data["id"], str | int):
        raise _bad(where, "an id", json.dumps(data.get("id")))
    where = f"{where} ({data['id']})"
    before = _id(data, "continue_of", where)
    return TraceRequest(
        data["id"],
        _tokens(data.get("prompt", []), where),
        _number(data, "max_tokens", where, 1),
        _number(data, "arrival_step", where, 0),
        before if before is not None else _id(data, "after", where),
        before is not None,
        _text(data, "salt", where),
        _text(data, "adapter", where),
        _media(data.get("media") or [], where),
        _number(data, "priority", where, 0, least=-(2**31)),
        None if data.get("abort_step") is None else _number(data, "abort_step", where, 0),
        bool(data.get("no_cache_read", False)),
    )


def _tokens(parts: Any, where: str) -> Tokens:
    if not isinstance(parts, list):
        raise _bad(where, "prompt: a list of parts", json.dumps(parts)[:80])
    arrays = [_part(part, where) for part in parts]
    return np.concatenate([np.zeros(0, np.int32), *arrays])


def _part(part: Any, where: str) -> Tokens:
    if isinstance(part, Mapping) and set(part) == {"tokens"} and isinstance(part["tokens"], list):
        ids = part["tokens"]
        if all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**31 for i in ids):
            return np.array(ids, np.int32)
    if isinstance(part, Mapping) and "stream" in part and set(part) <= {"stream", "start", "stop"}:
        start, stop = _number(part, "start", where, 0), _number(part, "stop", where, None)
        if start <= stop:
            return stream_tokens(str(part["stream"]), start, stop)
    expected = 'prompt parts {"stream": name, "start": a, "stop": b} or {"tokens": [ids]}'
    raise _bad(where, expected, json.dumps(part)[:80])


def _media(items: Any, where: str) -> tuple[Media, ...]:
    found: list[Media] = []
    for item in items if isinstance(items, list) else [items]:
        if not isinstance(item, Mapping) or "id" not in item:
            raise _bad(where, 'media {"id": name, "start": a, "stop": b}', json.dumps(item)[:80])
        start, stop = _number(item, "start", where, 0), _number(item, "stop", where, None)
        if start >= stop:
            raise _bad(where, "media with start < stop", json.dumps(item)[:80])
        found.append(Media(str(item["id"]), start, stop))
    return tuple(found)


def _number(
    data: Mapping[str, Any], name: str, where: str, default: int | None, *, least: int = 0
) -> int:
    value = data.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _bad(where, f"{name}: an integer of at least {least}", json.dumps(value))
    return value


def _id(data: Mapping[str, Any], name: str, where: str) -> Id | None:
    value = data.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise _bad(where, f"{name}: the id of a request", json.dumps(value)[:80])
    return value


def _text(data: Mapping[str, Any], name: str, where: str) -> str | None:
    value = data.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise _bad(where, f"{name}: a text", json.dumps(value)[:80])
    return None if value is None else str(value)


def check_order(requests: list[TraceRequest]) -> None:
    """Ids are unique, every ``after`` names one, and nothing waits for itself."""
    by_id: dict[Id, TraceRequest] = {}
    for request in requests:
        if request.id in by_id:
            raise _bad(str(request.id), "an id of its own", "an id that was used before")
        by_id[request.id] = request
    settled: set[Id] = set()
    for request in requests:
        chain: list[Id] = []
        at: TraceRequest | None = request
        while at is not None and at.id not in settled:
            if at.id in chain:
                raise _bad(str(request.id), "an order that begins somewhere", "a cycle of after")
            chain.append(at.id)
            if at.after is not None and at.after not in by_id:
                raise _bad(str(at.id), "after: the id of a request", str(at.after))
            at = None if at.after is None else by_id[at.after]
        settled.update(chain)


def _bad(where: str, expected: str, found: str) -> K3Error:
    return K3Error("K3-R012", where=where, expected=expected, found=found)
