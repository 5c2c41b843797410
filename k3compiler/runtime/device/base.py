"""What the runtime asks of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from k3compiler.package.reader import Package
from k3compiler.runtime.device.launch_table import Item, LaunchTable

Array = NDArray[Any]


class Buffer(Protocol):
    """Device memory at a fixed address; it lives as long as the object."""

    @property
    def pointer(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A dense row-major array in a buffer, as library calls see it."""

    buffer: Buffer
    dtype: str
    shape: tuple[int, ...]


Fetch = Callable[[], list[Array]]
"""Waits until the arrays are on the host, and gives them."""


class Staging(Protocol):
    """Host memory whose contents go to the start of a buffer, in order with the launches."""

    def room(self) -> NDArray[np.uint8]:
        """The memory to fill for the next :meth:`send`."""
        ...

    def send(self, num_bytes: int) -> None:
        """Copy what was filled; returns at once."""
        ...


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A library call of a plan, e.g. ``gemm(x, w, y)``: ``y = x @ w.T``."""

    name: str
    args: tuple[TensorRef, ...]
    label: str


class Program(Protocol):
    """A plan's launches, bound to a device."""

    def run(
        self,
        calls: Sequence[LibraryCall],
        graph_key: tuple[int, ...] | None,
        items: Sequence[Item] | None = None,
    ) -> None:
        """Run every step (or the ``items`` given) in order with the table as it is patched now.

        Args:
            calls: one per library call of the plan, in order.
            items: some of the table's, without a recording.
            graph_key: where a device can replay, runs with an equal key may be one recording: the
                pointers, scalars and grids are the same.
        """
        ...


class Device(Protocol):
    """Memory, kernels and launches. Everything is in order on one stream.

    Attributes:
        name: ``cpu``, ``cuda:0``, ``null``.
        hidden_slots: 8-byte arguments that this device appends to every launch.
        exact_rows: decode needs no padding to a bucket.
    """

    name: str
    hidden_slots: int
    exact_rows: bool

    def load(self, package: Package) -> None:
        """Load the package's kernels.

        Raises:
            K3Error: K3-K009 built for another ISA, K3-R009 a library or module is unusable.
        """
        ...

    def allocate(self, num_bytes: int, *, fill: int | None = None) -> Buffer:
        """Memory of at least one byte, aligned to 64 or more, optionally filled with a byte."""
        ...

    def free_bytes(self) -> int:
        """Memory that is left to allocate."""
        ...

    def fill(self, buffer: Buffer, value: int) -> None:
        """Set every byte."""
        ...

    def upload(self, buffer: Buffer, data: Array) -> None:
        """Copy a contiguous host array to the start of ``buffer``."""
        ...

    def staging(self, buffer: Buffer, num_bytes: int) -> Staging:
        """Host memory for what is copied to the start of ``buffer`` step after step."""
        ...

    def fetch(self, refs: Sequence[TensorRef]) -> Fetch:
        """Start copying arrays to the host, behind what was launched so far; returns at once."""
        ...

    def write(self, ref: TensorRef, fill: Callable[[Array], None]) -> None:
        """Let ``fill`` write a host array of ``ref``'s shape, which becomes its contents."""
        ...

    def tensor(self, ref: TensorRef) -> Any:
        """A view of device memory that can be indexed and assigned (numpy's, or torch's)."""
        ...

    def download(self, buffer: Buffer, dtype: str, shape: tuple[int, ...]) -> Array:
        """A host copy of the array at the start of ``buffer``; waits for what was launched."""
        ...

    def program(self, table: LaunchTable) -> Program:
        """A program over ``table``, whose arrays keep their addresses."""
        ...

    def synchronize(self) -> None:
        """Wait for everything that was launched."""
        ...

    def close(self) -> None:
        """Give back threads and modules; buffers stay valid."""
        ...
