"""Writing a package: everything into a hidden sibling directory, one rename at the end.

States of ``DIR`` while a build runs (beside it: ``.DIR.partial``, ``.DIR.lock``, ``.DIR.old``):

    before commit   DIR absent, or the former package, untouched; .partial grows
    commit          files synced; DIR -> .old (if there was one), .partial -> DIR, .old removed
    killed build    DIR as before; the next build into DIR removes .partial

The lock is an flock, so it dies with the process that holds it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.package.codec import canonical_json
from k3compiler.package.manifest import (
    MANIFEST_NAME,
    Manifest,
    Plan,
    WeightMap,
    check_path,
    sha256_hex,
)


class PackageWriter:
    """Collects the files of a package and publishes them whole, or not at all.

    Use as a context manager; leaving it without :meth:`commit` removes what was written.

    Args:
        path: the package directory to make. A former package there is replaced, anything else is
            refused.

    Raises:
        K3Error: K3-K007 another build holds the directory, K3-K008 it cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._partial = self.path.with_name(f".{self.path.name}.partial")
        self._old = self.path.with_name(f".{self.path.name}.old")
        self._digests: dict[str, str] = {}
        self._release: Callable[[], None] | None = None

    def __enter__(self) -> PackageWriter:
        with _writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._release = _lock(self.path)
            try:
                self._begin()
            except BaseException:
                self._close()
                raise
        return self

    def _begin(self) -> None:
        if self._old.exists() and not self.path.exists():
            self._old.rename(self.path)  # a build was killed between the two renames
        shutil.rmtree(self._old, ignore_errors=True)
        shutil.rmtree(self._partial, ignore_errors=True)
        _refuse_foreign(self.path)
        self._partial.mkdir()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._partial, ignore_errors=True)
        self._close()

    def _close(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    def add_bytes(self, name: str, data: bytes) -> str:
        """Add the file ``name`` (relative, ``/`` between folders); returns ``name``."""
        check_path(name, "package file")
        assert self._release is not None, "the writer is not open"
        assert name not in self._digests and name != MANIFEST_NAME, f"{name} is written twice"
        with _writing(self._partial / name):
            _write_synced(self._partial / name, data)
        self._digests[name] = sha256_hex(data)
        return name

    def add_text(self, name: str, text: str) -> str:
        """Add a UTF-8 text file."""
        return self.add_bytes(name, text.encode())

    def add_json(self, name: str, value: Any) -> str:
        """Add a JSON file in canonical spelling."""
        return self.add_bytes(name, canonical_json(value))

    def add_plan(self, plan: Plan) -> str:
        """Add ``plans/<phase>.json``."""
        return self.add_json(f"plans/{plan.phase}.json", plan.to_json())

    def add_weights(self, weights: WeightMap) -> str:
        """Add ``weights.json``."""
        return self.add_json("weights.json", weights.to_json())

    def commit(self, manifest: Manifest) -> Manifest:
        """Seal the manifest with the digests of all files, then make the package appear.

        Returns:
            The manifest as written.
        """
        assert self._release is not None, "the writer is not open"
        sealed = manifest.sealed(self._digests)
        data = canonical_json(sealed.to_json())
        Manifest.from_json(sealed.to_json())  # what the reader will check
        with _writing(self.path):
            _write_synced(self._partial / MANIFEST_NAME, data)
            for folder in sorted({p.parent for p in self._partial.rglob("*")}):
                _sync_directory(folder)
            self._publish()
        return sealed

    def _publish(self) -> None:
        if self.path.exists():
            self.path.rename(self._old)
        self._partial.rename(self.path)
        _sync_directory(self.path.parent)
        shutil.rmtree(self._old, ignore_errors=True)


def _write_synced(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refuse_foreign(path: Path) -> None:
    """A build may replace a package or an empty directory, never something else."""
    if not path.exists() or (path / MANIFEST_NAME).is_file():
        return
    if not path.is_dir() or any(path.iterdir()):
        raise K3Error(
            "K3-K008",
            where=str(path),
            expected="no such path, an empty directory or a package to replace",
            found="a directory with other files" if path.is_dir() else "a file",
            hint="choose another output directory",
        )


def _lock(path: Path) -> Callable[[], None]:
    """Take the build lock beside ``path``; returns what releases it."""
    lock = path.with_name(f".{path.name}.lock")
    while True:
        handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise K3Error(
                "K3-K007",
                where=str(path),
                expected="one build at a time",
                found=f"{lock} is held by a running build",
                hint="wait for it, or choose another output directory",
            ) from None
        if _is_same_file(lock, handle):
            break
        os.close(handle)  # the former holder removed it between our open and our flock

    def release() -> None:
        lock.unlink(missing_ok=True)
        os.close(handle)

    return release


def _is_same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


@contextmanager
def _writing(path: Path) -> Generator[None]:
    """Operating system refusals become K3-K008."""
    try:
        yield
    except OSError as fault:
        full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
        raise K3Error(
            "K3-K008",
            where=str(path),
            expected="room on the disk" if full else "a directory that can be written",
            found=os.strerror(fault.errno) if fault.errno else str(fault),
            hint="free some space; nothing half-written was left behind" if full else "",
        ) from fault
