"""A device that records launches and computes nothing, for schedulers and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k3compiler.package.reader import Package
from k3compiler.runtime.device.base import LibraryCall
from k3compiler.runtime.device.cpu import HostMemory
from k3compiler.runtime.device.launch_table import LaunchTable


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

    def run(self, calls: Sequence[LibraryCall], graph_key: tuple[int, ...] | None) -> None:
        for index, (first, end) in enumerate(self._table.segments):
            self._launches.extend(self._table.describe(i) for i in range(first, end))
            if index < len(calls):
                call = calls[index]
                self._launches.append({"call": call.name, "shapes": [a.shape for a in call.args]})
