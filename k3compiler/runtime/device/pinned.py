"""Copies between a GPU and pinned host memory, asynchronous in both directions.

The host never waits inside the driver: it asks an event until the copy is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.dtypes import numpy_dtype
from k3compiler.runtime.device.base import Array, Fetch

_NUM_ROOMS = 3  # one is filled while another is read, with one to spare


class PinnedStaging:
    """Blocks of pinned memory by turns, each used again when its copy is done.

    Args:
        memory: the torch byte tensor that the copies go to.
    """

    def __init__(self, torch: Any, memory: Any) -> None:
        self._torch, self._memory = torch, memory
        self._rooms: list[Any] = []
        self._copied: list[Any] = []
        self._turn = 0

    def room(self) -> NDArray[np.uint8]:
        if len(self._rooms) < _NUM_ROOMS:
            size = self._memory.numel()
            self._rooms.append(self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True))
            self._copied.append(self._torch.cuda.Event())
            self._turn = len(self._rooms) - 1
        else:
            self._turn = (self._turn + 1) % _NUM_ROOMS
            await_event(self._copied[self._turn])
        return self._rooms[self._turn].numpy()

    def send(self, num_bytes: int) -> None:
        source = self._rooms[self._turn][:num_bytes]
        self._memory[:num_bytes].copy_(source, non_blocking=True)
        self._copied[self._turn].record()


def fetch(torch: Any, sources: Sequence[tuple[Any, str, tuple[int, ...]]]) -> Fetch:
    """Copy arrays, given as (bytes on the device, dtype, shape), to pinned memory of their own."""
    arrays: list[Array] = []
    for memory, dtype, shape in sources:
        host = torch.empty(memory.numel(), dtype=torch.uint8, pin_memory=True)
        host.copy_(memory, non_blocking=True)
        arrays.append(host.numpy().view(numpy_dtype(dtype)).reshape(shape))
    done = torch.cuda.Event()
    done.record()

    def wait() -> list[Array]:
        await_event(done)
        return arrays

    return wait


def await_event(event: Any) -> None:
    """Until the device has passed it; raises where the device failed."""
    while not event.query():
        pass
