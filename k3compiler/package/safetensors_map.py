"""Memory-mapped safetensors: one file or several behind an index.

The checkpoint's tensors stay on disk; reading one returns a read-only view of the mapped
file. Header layout: 8 bytes of length (little endian), that many bytes of JSON, then data.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from k3compiler.dtypes import NUMPY_DTYPES
from k3compiler.errors import K3Error

Array = NDArray[Any]

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 256 << 20

# safetensors name -> (our name, numpy type). Those after the first row are read only so that a
# checkpoint that holds them can be refused by name.
_DTYPES: dict[str, tuple[str, np.dtype[Any]]] = {
    "F32": ("f32", NUMPY_DTYPES["f32"]),
    "BF16": ("bf16", NUMPY_DTYPES["bf16"]),
    "F16": ("f16", NUMPY_DTYPES["f16"]),
    "F8_E4M3": ("e4m3", NUMPY_DTYPES["e4m3"]),
    "I32": ("i32", NUMPY_DTYPES["i32"]),
    "U8": ("i8", NUMPY_DTYPES["i8"]),
    "I8": ("int8", np.dtype(np.int8)),
    "F8_E5M2": ("e5m2", np.dtype(ml_dtypes.float8_e5m2)),
    "F8_E8M0": ("e8m0", np.dtype(ml_dtypes.float8_e8m0fnu)),
    "BOOL": ("bool", np.dtype(np.bool_)),
    "I16": ("int16", np.dtype(np.int16)),
    "U16": ("uint16", np.dtype(np.uint16)),
    "U32": ("uint32", np.dtype(np.uint32)),
    "I64": ("int64", np.dtype(np.int64)),
    "U64": ("uint64", np.dtype(np.uint64)),
    "F64": ("float64", np.dtype(np.float64)),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. ``offset`` is in bytes from the start of ``path``."""

    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    stored: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.stored.itemsize


class CheckpointFiles(Mapping[str, Array]):
    """All tensors of a checkpoint directory, mapped and read on demand; also a mapping.

    Takes ``model.safetensors``, or the shards that ``model.safetensors.index.json`` names, or any
    ``*.safetensors`` where neither exists.

    Raises:
        K3Error K3-G005: a file is missing, truncated, or not safetensors.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._maps: dict[Path, NDArray[np.uint8]] = {}
        self._tensors: dict[str, TensorInfo] = {}
        for path in self._files():
            self._add_file(path)
        self._check_index()

    def names(self) -> list[str]:
        """Tensor names, sorted."""
        return sorted(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Array:
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._tensors)

    def info(self, name: str) -> tuple[str, tuple[int, ...]]:
        """``(dtype name, shape)`` of a tensor; U8 is ``i8``, foreign types have long names."""
        found = self._find(name)
        return found.dtype, found.shape

    def read(self, name: str) -> Array:
        """A read-only view of the mapped file, in the stored type (bf16 as ml_dtypes)."""
        found = self._find(name)
        raw = self._map(found.path)[found.offset : found.offset + found.num_bytes]
        if found.offset % found.stored.itemsize:
            raw = raw.copy()  # numpy views must be aligned; writers align, but need not
        return raw.view(found.stored).reshape(found.shape)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors together, headers not counted."""
        return sum(t.num_bytes for t in self._tensors.values())

    @cached_property
    def _weight_map(self) -> dict[str, str] | None:
        """The index file's tensor -> file table, or None where there is no index."""
        path = self.directory / INDEX_FILE
        if not path.is_file():
            return None
        try:
            table = json.loads(path.read_text())["weight_map"]
        except (ValueError, KeyError, TypeError) as fault:
            _refuse(path, "JSON with a weight_map object", f"{type(fault).__name__}: {fault}")
        if not isinstance(table, dict):
            _refuse(path, "weight_map: {tensor: file}", f"weight_map: {type(table).__name__}")
        files = {str(k): str(v) for k, v in table.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        outside = sorted({f for f in files.values() if Path(f).name != f})
        if outside:
            _refuse(path, "plain file names in weight_map", f"{outside[0]!r}")
        return files

    def _files(self) -> list[Path]:
        if not self.directory.is_dir():
            _refuse(self.directory, "a checkpoint directory", "no such directory")
        if (table := self._weight_map) is not None:
            return [self.directory / name for name in sorted(set(table.values()))]
        if (single := self.directory / SINGLE_FILE).is_file():
            return [single]
        found = sorted(self.directory.glob("*.safetensors"))
        if not found:
            _refuse(self.directory, f"{SINGLE_FILE} or {INDEX_FILE}", "no safetensors file")
        if len(found) > 1:
            _refuse(
                self.directory,
                f"{INDEX_FILE}, which says what the {len(found)} shards hold",
                "no index file",
                "without it a missing shard would go unnoticed; copy it beside the shards",
            )
        return found

    def _add_file(self, path: Path) -> None:
        for name, info in read_header(path).items():
            if name in self._tensors:
                _refuse(path, f"{name} once", f"also in {self._tensors[name].path.name}")
            self._tensors[name] = info

    def _check_index(self) -> None:
        if (table := self._weight_map) is None:
            return
        for name, file in table.items():
            found = self._tensors.get(name)
            if found is None or found.path.name != file:
                place = "in no shard" if found is None else f"in {found.path.name}"
                _refuse(self.directory / INDEX_FILE, f"{name} in {file}", place)

    def _find(self, name: str) -> TensorInfo:
        found = self._tensors.get(name)
        if found is None:
            raise K3Error(
                "K3-G004",
                where=str(self.directory),
                expected=f"tensor {name}",
                found=f"{len(self._tensors)} tensors, not this one",
            )
        return found

    def _map(self, path: Path) -> NDArray[np.uint8]:
        if path not in self._maps:
            self._maps[path] = np.memmap(path, dtype=np.uint8, mode="r")
        return self._maps[path]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensor table of one safetensors file, every extent checked against the file's size.

    Raises:
        K3Error K3-G005: missing, truncated, or not safetensors.
    """
    if not path.is_file():
        _refuse(path, "a safetensors file", "no such file")
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8:
            _refuse(path, "a safetensors file (8 length bytes first)", f"{file_bytes} bytes")
        length = struct.unpack("<Q", head)[0]
        if length > MAX_HEADER_BYTES:
            _refuse(path, f"a header of at most {MAX_HEADER_BYTES} bytes", f"{length} bytes")
        if 8 + length > file_bytes:
            _refuse(path, f"a header of {length} bytes", f"{file_bytes} bytes in the file")
        text = file.read(length)
    try:
        table: dict[str, Any] = json.loads(text)
        table.pop("__metadata__", None)
        infos = {n: _tensor_info(path, e, 8 + length) for n, e in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        _refuse(path, "a safetensors header", f"{type(fault).__name__}: {fault}")
    _check_extents(path, infos, file_bytes)
    return infos


def _tensor_info(path: Path, entry: dict[str, Any], data_start: int) -> TensorInfo:
    kind = entry["dtype"]
    if kind not in _DTYPES:
        _refuse(path, f"a dtype among {' '.join(_DTYPES)}", f"{kind!r}")
    name, stored = _DTYPES[kind]
    shape = tuple(int(n) for n in entry["shape"])
    begin, end = (int(n) for n in entry["data_offsets"])
    info = TensorInfo(name, shape, path, data_start + begin, stored)
    if min(shape, default=0) < 0 or begin < 0 or end - begin != info.num_bytes:
        _refuse(path, f"{kind} {list(shape)} in {info.num_bytes} bytes", f"{end - begin} bytes")
    return info


def _check_extents(path: Path, infos: dict[str, TensorInfo], file_bytes: int) -> None:
    for name, info in infos.items():
        end = info.offset + info.num_bytes
        if end > file_bytes:
            _refuse(
                path,
                f"at least {end} bytes ({name} ends there)",
                f"{file_bytes} bytes",
                "the file is truncated: download or copy it again",
            )


def _refuse(path: Path, expected: str, found: str, hint: str = "") -> NoReturn:
    raise K3Error("K3-G005", where=str(path), expected=expected, found=found, hint=hint)
