"""The kernel cache: built kernels by the content of everything that decides their bytes.

One file a kernel, written under a temporary name and renamed; a file that is not whole is a miss. Several builds
may use one cache at a time. Nothing is ever evicted: remove the directory to make room.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from k3compiler import __version__
from k3compiler.errors import K3Error
from k3compiler.package.codec import canonical_json, decode, encode
from k3compiler.package.manifest import LaunchRecord, ResourceRecord
from k3compiler.targets.backend import BuildRequest, BuiltKernel, TargetBackend
from k3compiler.targets.base import TargetSpec

MAGIC = b"k3c-kernel-1\n"


@dataclass(frozen=True, slots=True)
class _Header:
    """First line of a cache file; the files' bytes follow in this order."""

    symbol: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    launch: LaunchRecord
    resources: ResourceRecord


class KernelCache:
    """Built kernels under one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> BuiltKernel | None:
        """The kernel of that key; None where there is none, or its file is not whole."""
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        start = len(MAGIC) + 65
        digest, body = data[len(MAGIC) : start - 1], data[start:]
        if not data.startswith(MAGIC) or hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        return _unpack(body)

    def put(self, key: str, kernel: BuiltKernel) -> None:
        """Keeps a kernel.

        Raises:
            K3Error: ``K3-E003`` for a full disk, ``K3-E004`` where the directory cannot be written.
        """
        body = _pack(kernel)
        digest = hashlib.sha256(body).hexdigest().encode()
        with _refusals(self.folder):
            self._path(key).parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path(key).parent, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(MAGIC + digest + b"\n" + body)
                Path(name).replace(self._path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(name).unlink()
                raise

    def _path(self, key: str) -> Path:
        return self.folder / "kernels" / key[:2] / f"{key}.k3k"


class CacheKeys:
    """Keys of one target's kernels: what all of them share is digested once."""

    def __init__(self, spec: TargetSpec, backend: TargetBackend) -> None:
        sources = hashlib.sha256()
        for package in sorted({*backend.sources(), "k3compiler.targets.backend"}):
            for path in _python_files(package):
                sources.update(f"{path.name}\0".encode() + path.read_bytes())
        shared = {
            "version": __version__,
            "tools": dict(backend.versions()),
            "sources": sources.hexdigest(),
            "isa": spec.isa,
            "shared_limit": spec.shared_limit_bytes,
        }
        self._shared = canonical_json(shared)

    def key(self, request: BuildRequest) -> str:
        """64 hex digits."""
        schedule = canonical_json(dict(request.schedule))
        parts = (self._shared, schedule, request.tile_text.encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _python_files(package: str) -> list[Path]:
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, f"no source of {package}"
    origin = Path(spec.origin)
    return sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]


def _pack(kernel: BuiltKernel) -> bytes:
    names = tuple(sorted(kernel.files))
    sizes = tuple(len(kernel.files[n]) for n in names)
    header = _Header(kernel.symbol, names, sizes, kernel.launch, kernel.resources)
    line = json.dumps(encode(header), sort_keys=True).encode() + b"\n"
    return line + b"".join(kernel.files[n] for n in names)


def _unpack(body: bytes) -> BuiltKernel | None:
    line, _, rest = body.partition(b"\n")
    try:
        header = decode(_Header, json.loads(line), "cache file")
    except (K3Error, ValueError):
        return None
    files: dict[str, bytes] = {}
    for name, size in zip(header.names, header.sizes, strict=True):
        files[name], rest = rest[:size], rest[size:]
    return BuiltKernel(header.symbol, files, header.launch, header.resources)


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
        raise K3Error(
            "K3-E003" if full else "K3-E004",
            where=f"kernel cache {folder}",
            expected="room on the disk" if full else "a directory that can be written",
            found=os.strerror(fault.errno) if fault.errno else str(fault),
            hint="K3C_CACHE_DIR names another directory",
        ) from fault
