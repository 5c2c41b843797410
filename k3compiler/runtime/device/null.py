"""A device that records launches and computes nothing, for schedulers and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k3compiler.package.reader import Package
from k3compiler.runtime.device.base import LibraryCall
from k3compiler.runtime.device.cpu import HostMemory
from k3compiler.runtime.device.launch_table import CallItem, Item, LaunchTable


class NullDevice(HostMemory):
    """Takes any package; ``launches`` lists what would have run, in order."""

    name = "null"
    hidden_slots = 0
    exact_rows = True

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []

    def load(self, package: Package) -> None:
        """Every ISA will do."""

    def program(self, table: LaunchTable) -> NullProgram:
        return NullProgram(table, self.launches)

    def close(self) -> None:
        """Nothing is held."""


class NullProgram:
    """Appends each launch and call to the device's list."""

    def __init__(self, table: LaunchTable, launches: list[dict[str, Any]]) -> None:
        self._table, self._launches = table, launches

    def run(
        self,
        calls: Sequence[LibraryCall],
        graph_key: tuple[int, ...] | None,
        items: Sequence[Item] | None = None,
    ) -> None:
        for item in self._table.items if items is None else items:
            if isinstance(item, CallItem):
                call = calls[item.index]
                self._launches.append({"call": call.name, "shapes": [a.shape for a in call.args]})
            else:
                run = range(item.first, item.end)
                self._launches.extend(self._table.describe(i) for i in run)
