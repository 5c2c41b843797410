"""The lower tier: copies of units and states in host memory, least recently used out first.

This is the seam that a remote store would use: the tier knows handles and bytes; the contents are
moved by the device (``Spill``, ``Restore``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from k3compiler.runtime.cache.ops import Kind


class HostTier:
    """What is spilled where, in bytes.

    Args:
        capacity: bytes. item_bytes: bytes of a spilled unit ("page") and of a state.
    """

    def __init__(self, capacity: int, item_bytes: dict[Kind, int]) -> None:
        self.capacity, self._item_bytes = capacity, item_bytes
        self._items: OrderedDict[int, tuple[Kind, int]] = OrderedDict()
        self._handles = count(1)
        self.used_bytes = 0

    def can_hold(self, kind: Kind) -> bool:
        """Whether an empty tier has room for one."""
        return self._item_bytes[kind] <= self.capacity

    def make_room(self, kind: Kind, evict: Callable[[int, Kind, int], bool]) -> bool:
        """Evict until one more fits; ``evict(handle, kind, node)`` is False where it may not go."""
        need = self._item_bytes[kind]
        while self.used_bytes + need > self.capacity:
            if not any(evict(h, *item) for h, item in list(self._items.items())):
                return False
        return True

    def put(self, kind: Kind, node: int) -> int:
        """A handle for a new copy; there must be room."""
        self.used_bytes += self._item_bytes[kind]
        assert self.used_bytes <= self.capacity, "the host tier is over its size"
        handle = next(self._handles)
        self._items[handle] = (kind, node)
        return handle

    def has(self, handle: int) -> bool:
        """Whether the copy is still there."""
        return handle in self._items

    def touch(self, handle: int) -> None:
        """It was used."""
        self._items.move_to_end(handle)

    def drop(self, handle: int) -> None:
        """Forget a copy."""
        kind, _ = self._items.pop(handle)
        self.used_bytes -= self._item_bytes[kind]

    def items(self) -> dict[int, tuple[Kind, int]]:
        """Handle -> (kind, node), for checks."""
        return dict(self._items)
