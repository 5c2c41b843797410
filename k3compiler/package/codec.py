"""Frozen dataclasses to JSON and back, checked field by field.

``decode`` accepts exactly the annotated shape: a missing key without default, an unknown key or a
value of another type is refused with the path of the key. ``encode`` drops fields that hold None,
so that optional keys stay optional.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from k3compiler.errors import K3Error

T = TypeVar("T")


def canonical_json(value: Any) -> bytes:
    """The one spelling of a JSON value: sorted keys, one-space indent, final newline."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def encode(value: Any) -> Any:
    """A dataclass tree as plain JSON values."""
    if dataclasses.is_dataclass(value):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: encode(item) for name, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    return value


def decode(kind: type[T], data: Any, where: str) -> T:
    """The inverse of :func:`encode` for the dataclass ``kind``.

    Raises:
        K3Error: K3-K003 naming the key (``where`` and the path below it).
    """
    return _decode(kind, data, where)


@lru_cache(maxsize=256)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(kind: Any, data: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_record(kind, data, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), data, where)
    if origin is tuple:
        return _decode_tuple(get_args(kind), data, where)
    if origin is dict:
        _want(isinstance(data, dict), where, "an object", data)
        return {k: _decode(get_args(kind)[1], v, f"{where}.{k}") for k, v in data.items()}
    if origin is Literal:
        _want(data in get_args(kind), where, f"one of {list(get_args(kind))}", data)
    elif kind is not Any:
        _want(type(data) is kind, where, str(getattr(kind, "__name__", kind)), data)
    return data


def _decode_record(kind: type, data: Any, where: str) -> Any:
    _want(isinstance(data, dict), where, "an object", data)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(data) - set(fields))
    _want(not unknown, where, f"keys among {', '.join(fields)}", unknown)
    missing = [n for n, f in fields.items() if n not in data and _required(f)]
    _want(not missing, where, f"key {', '.join(missing)}", "no such key")
    hints = _hints(kind)
    return kind(**{n: _decode(hints[n], v, f"{where}.{n}") for n, v in data.items()})


def _required(field: dataclasses.Field[Any]) -> bool:
    nothing = dataclasses.MISSING
    return field.default is nothing and field.default_factory is nothing


def _decode_union(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    for kind in kinds:
        if kind is type(None):
            if data is None:
                return None
            continue
        if len(kinds) == 2 and type(None) in kinds:
            return _decode(kind, data, where)
        if isinstance(kind, type) and type(data) is kind:
            return data
    raise _refused(where, " or ".join(getattr(k, "__name__", str(k)) for k in kinds), data)


def _decode_tuple(kinds: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    _want(isinstance(data, list), where, "a list", data)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(data)
    _want(len(data) == len(kinds), where, f"{len(kinds)} items", f"{len(data)} items")
    pairs = enumerate(zip(kinds, data, strict=True))
    return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in pairs)


def _want(fine: bool, where: str, expected: str, found: Any) -> None:
    if not fine:
        raise _refused(where, expected, found)


def _refused(where: str, expected: str, found: Any) -> K3Error:
    text = found if isinstance(found, str) else repr(found)
    return K3Error("K3-K003", where=where, expected=expected, found=text[:200])
