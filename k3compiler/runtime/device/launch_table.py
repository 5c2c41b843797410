"""A plan's launches as flat arrays that one numpy expression patches.

    args          [slots] i64   every launch's arguments one after another: pointers, then scalars
                                (their bits in the low half), then the device's hidden slots
    starts        [L]           first slot of each launch
    grids         [L, 3] i64    programs along x, y, z

Between two steps with the same sizes nothing changes; otherwise the distinct expressions of the
whole plan are evaluated once and scattered. The arrays never move, so a device may keep addresses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.errors import K3Error
from k3compiler.package.expr import Expr, compile_exprs
from k3compiler.package.manifest import (
    ArgRecord,
    CallStep,
    KernelRecord,
    LaunchStep,
    Step,
)

_FLOAT_PREFIX = "f:"
_SLOT_BYTES = 8


@dataclass(frozen=True, slots=True)
class LaunchRun:
    """The launches ``first .. end``, with nothing between them."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class CallItem:
    """Library call number ``index`` of the plan."""

    index: int


Item = LaunchRun | CallItem


class LaunchTable:
    """Arguments and grids of the launches in ``steps``.

    Args:
        steps: the plan's steps; library calls cut the launches into runs.
        kernels: by symbol.
        buffer_ids: buffer name -> index into the pointers given to :meth:`bind`.
        hidden_slots: extra zero slots after each launch's arguments.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        kernels: Mapping[str, KernelRecord],
        buffer_ids: Mapping[str, int],
        *,
        hidden_slots: int = 0,
    ) -> None:
        self.launches = tuple(s for s in steps if isinstance(s, LaunchStep))
        self.kernels = tuple(kernels[s.launch] for s in self.launches)
        self.steps = tuple(steps)
        self.items = self.items_of(0, len(steps))
        self.version = 0  # grows whenever an address changes: recordings are stale then
        counts = np.array([len(s.args) + hidden_slots for s in self.launches], np.int64)
        ends = np.cumsum(counts)
        self.starts = ends - counts
        self.hidden = ends - hidden_slots
        self.args = np.zeros(int(counts.sum()) + 1, np.int64)  # never empty: it has an address
        self.grids = np.zeros((len(self.launches), 3), np.int64)
        self._exprs: dict[Expr, int] = {}
        self._pointer_slots, self._pointer_ids = self._scan(buffer_ids)
        grid_ids = [[self._expr(_spelled(g)) for g in s.grid] for s in self.launches]
        self._grid_ids = np.array(grid_ids, np.int64).reshape(-1, 3)
        self._evaluate: Callable[[Mapping[str, int]], tuple[int, ...]] = compile_exprs(
            list(self._exprs)
        )

    def _scan(self, buffer_ids: Mapping[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sort the slots: pointers and expressions become index arrays, floats are written now."""
        pointers: list[tuple[int, int]] = []
        scalars: list[tuple[int, int]] = []
        for step, kernel, start in zip(self.launches, self.kernels, self.starts, strict=True):
            for offset, (text, arg) in enumerate(zip(step.args, kernel.args, strict=True)):
                slot = int(start) + offset
                if arg.kind == "buffer":
                    pointers.append((slot, _buffer_id(text, buffer_ids, step)))
                elif arg.dtype == "f32":
                    self.args[slot] = _float_bits(text, arg, step)
                else:
                    scalars.append((slot, self._expr(_spelled(text))))
        columns = np.array(scalars, np.int64).reshape(-1, 2)
        self._scalar_slots, self._scalar_ids = columns[:, 0].copy(), columns[:, 1].copy()
        columns = np.array(pointers, np.int64).reshape(-1, 2)
        return columns[:, 0].copy(), columns[:, 1].copy()

    def _expr(self, expr: Expr) -> int:
        return self._exprs.setdefault(expr, len(self._exprs))

    def __len__(self) -> int:
        return len(self.launches)

    def items_of(self, begin: int, end: int) -> tuple[Item, ...]:
        """What the steps ``begin .. end`` do, in order; neighbouring launches are one run.

        A collective of one rank is the identity and leaves no trace.
        """
        items: list[Item] = []
        launch = sum(isinstance(s, LaunchStep) for s in self.steps[:begin])
        call = sum(isinstance(s, CallStep) for s in self.steps[:begin])
        for step in self.steps[begin:end]:
            if isinstance(step, CallStep):
                items.append(CallItem(call))
                call += 1
            elif isinstance(step, LaunchStep):
                last = items[-1] if items else None
                first = launch
                if isinstance(last, LaunchRun):
                    first = last.first
                    items.pop()
                launch += 1
                items.append(LaunchRun(first, launch))
        return tuple(items)

    def bind(self, pointers: NDArray[np.int64]) -> None:
        """Write buffer addresses (after memory was allocated or moved)."""
        self.args[self._pointer_slots] = pointers[self._pointer_ids]
        self.version += 1

    def patch(self, symbols: Mapping[str, int]) -> None:
        """Write scalars and grids for a step's sizes."""
        values = np.array(self._evaluate(symbols), np.int64)
        scalars = values[self._scalar_ids]
        assert not len(scalars) or abs(scalars).max() < 2**31, "a scalar does not fit 32 bits"
        self.args[self._scalar_slots] = scalars
        if len(self.grids):
            self.grids[:] = values[self._grid_ids]
            assert self.grids.min() >= 0, "a grid is negative"

    def arg_address(self, launch: int) -> int:
        """The address of a launch's first argument slot."""
        return self.args.ctypes.data + _SLOT_BYTES * int(self.starts[launch])

    def arg_addresses(self) -> NDArray[np.int64]:
        """Addresses of every launch's first argument slot."""
        return self.args.ctypes.data + _SLOT_BYTES * self.starts

    def describe(self, launch: int) -> dict[str, Any]:
        """A launch in words, for errors, traces and the null device."""
        step, start = self.launches[launch], int(self.starts[launch])
        names = [a.name for a in self.kernels[launch].args]
        values = self.args[start : start + len(names)].tolist()
        return {
            "symbol": step.launch,
            "op": step.op,
            "layer": step.layer,
            "grid": tuple(self.grids[launch].tolist()),
            "args": dict(zip(names, values, strict=True)),
        }


def _buffer_id(text: str, buffer_ids: Mapping[str, int], step: LaunchStep) -> int:
    if text in buffer_ids:
        return buffer_ids[text]
    raise K3Error(
        "K3-K003",
        where=f"launch of {step.launch} ({step.op})",
        expected="a buffer, input, weight or state of the plan",
        found=text,
    )


def _float_bits(text: str, arg: ArgRecord, step: LaunchStep) -> int:
    try:
        value = float(text.removeprefix(_FLOAT_PREFIX))
    except ValueError:
        value = float("nan")
    if not text.startswith(_FLOAT_PREFIX) or not isfinite(value):
        raise K3Error(
            "K3-K003",
            where=f"launch of {step.launch}, argument {arg.name}",
            expected="f: and a number",
            found=text,
        )
    return int.from_bytes(struct.pack("<f", value), "little")


def _spelled(expr: Expr) -> Expr:
    """Plain numbers as integers, so that "1" and 1 are one expression."""
    return int(expr) if isinstance(expr, str) and expr.isdecimal() else expr
