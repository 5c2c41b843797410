"""One plan bound to one device: memory for its buffers, and a step as one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.dtypes import itemsize, numpy_dtype
from k3compiler.errors import K3Error
from k3compiler.package.expr import Expr, compile_exprs, evaluate
from k3compiler.package.manifest import (
    CallStep,
    CollectiveStep,
    KernelRecord,
    LaunchStep,
    Plan,
)
from k3compiler.package.step_inputs import INPUT_SHAPES
from k3compiler.runtime.device.base import Buffer, Device, LibraryCall, TensorRef
from k3compiler.runtime.device.launch_table import LaunchTable
from k3compiler.runtime.input_arena import InputArena
from k3compiler.runtime.state import is_state
from k3compiler.runtime.step import StepInputs

Array = NDArray[Any]

POISON_BYTE = 0xFF  # all ones is NaN in f32, bf16 and f16


StepHook = Callable[["PlanRunner", StepInputs], None]
"""Called between two steps of a plan; may read and write the runner's buffers."""


class PlanRunner:
    """Runs one plan, step after step, with memory that grows to the largest step seen.

    Memory by name: inputs lie in one arena, which the host and the plan's first launch fill; ``#3``
    is the storage block 3; an output without a block has its own; weights ``w:..`` and states are
    given and shared with other plans.

    Args:
        kernels: by symbol; the device has loaded them.
        fixed: weights (``w:<param>``) and states, with their dtypes and shapes.
        constants: symbols that never change (``PAGES``, ``SLOTS``, ``rank``).
        poison: fill workspace and outputs with NaN before every step.

    Attributes:
        after_step: hooks by step index, for checks; while there are any, nothing is recorded.

    Raises:
        K3Error: K3-R007 a collective over several ranks, K3-K003 a name that nothing provides.
    """

    def __init__(
        self,
        device: Device,
        plan: Plan,
        kernels: Mapping[str, KernelRecord],
        fixed: Mapping[str, TensorRef],
        constants: Mapping[str, int],
        *,
        num_ranks: int = 1,
        poison: bool = False,
    ) -> None:
        _check_collectives(plan, num_ranks)
        self._device, self.plan, self._fixed = device, plan, dict(fixed)
        self._constants, self._poison = dict(constants), poison
        self._buffers = {b.name: b for b in plan.buffers if b.kind in ("workspace", "output")}
        derived = _derived_inputs(plan, kernels)
        given = [name for name in _known_inputs(plan) if name not in derived]
        self._inputs = InputArena(device, given, sorted(derived))
        self._call_steps = [step for step in plan.steps if isinstance(step, CallStep)]
        self._carried = set(plan.outputs) & {a for s in plan.steps[:1] for a in s.args}
        self._blocks = self._block_sizes()
        self._memory: dict[str, Buffer] = {}
        self._capacity = np.full(len(self._blocks), -1, np.int64)
        self._sizes = compile_exprs(list(self._blocks.values()))
        self._derived = compile_exprs(list(plan.symbols.values()))
        self._names = self._pointer_names()
        ids = {name: index for index, name in enumerate(self._names)}
        self.table = LaunchTable(plan.steps, kernels, ids, hidden_slots=device.hidden_slots)
        self._program = device.program(self.table)
        self.after_step: dict[int, StepHook] = {}
        self._symbols: dict[str, int] = {}
        self._step_symbols: dict[str, int] = {}

    def _block_sizes(self) -> dict[str, Expr]:
        """Bytes of every block that this runner owns."""
        blocks: dict[str, Expr] = {}
        for block in self.plan.storage:
            blocks[f"#{block.id}"] = block.bytes
        for buffer in self._buffers.values():
            if buffer.storage is None:
                blocks[buffer.name] = _bytes_expr(buffer.shape, buffer.dtype)
        return blocks

    def _block_of(self, name: str) -> str:
        """The memory block in which an argument's buffer begins."""
        buffer = self._buffers.get(name)
        return name if buffer is None or buffer.storage is None else f"#{buffer.storage}"

    def _pointer_names(self) -> list[str]:
        """Every name that a step's argument may use for memory."""
        known = {*self.plan.inputs, *self._buffers, *self._fixed}
        for step in self.plan.steps:
            for name in step.args:
                is_named = name.startswith("w:") or is_state(name)
                if is_named and name not in known:
                    raise _unknown(self.plan, "a weight or state that is loaded", name)
        return sorted(known)

    def reserve(self, symbols: Mapping[str, int]) -> None:
        """Make room for steps of these sizes now, so that addresses stay fixed up to there."""
        self._grow(self._bind_symbols(symbols))

    def _bind_symbols(self, symbols: Mapping[str, int]) -> dict[str, int]:
        whole = {**self._constants, **symbols}
        whole |= zip(self.plan.symbols, self._derived(whole), strict=True)
        return whole

    def _grow(self, symbols: Mapping[str, int]) -> None:
        moved = self._inputs.reserve(symbols)
        need = np.array(self._sizes(symbols), np.int64)
        grown = np.flatnonzero(need > self._capacity)
        if not len(grown) and not moved:
            return
        names = list(self._blocks)
        for index in grown.tolist():
            name = names[index]
            is_first = self._memory.pop(name, None) is None  # free before taking more
            size = int(need[index]) if is_first else int(need[index]) * 5 // 4
            self._memory[name] = self._device.allocate(size)
            self._capacity[index] = size
        self.table.bind(np.array([self.pointer(name) for name in self._names], np.int64))

    def pointer(self, name: str) -> int:
        if name in self._inputs.names:
            return self._inputs.pointer(name)
        return self._buffer(self._block_of(name)).pointer

    def _buffer(self, block: str) -> Buffer:
        return self._fixed[block].buffer if block in self._fixed else self._memory[block]

    def tensor(self, name: str) -> TensorRef:
        """A weight, state or buffer of the plan as an array of the current step's shape."""
        if name in self._fixed:
            return self._fixed[name]
        buffer = self._buffers[name]
        shape = tuple(evaluate(extent, self._symbols) for extent in buffer.shape)
        return TensorRef(self._buffer(self._block_of(name)), buffer.dtype, shape)

    def run(self, step: StepInputs, fetch: Iterable[str] = ()) -> dict[str, Array]:
        """Run the plan on a step, and wait for it; see :meth:`start`."""
        return self.start(step, fetch)()

    def start(self, step: StepInputs, fetch: Iterable[str] = ()) -> Callable[[], dict[str, Array]]:
        """Launch the plan on a step and start copying outputs; returns at once on a GPU.

        Args:
            fetch: outputs to copy back.

        Returns:
            A function that waits, and gives host arrays of the outputs named, padding rows included.
        """
        if step.symbols != self._step_symbols:
            self._resize(step.symbols)
        absent = [name for name in self._inputs.given if name not in step.arrays]
        if absent:
            raise _unknown(self.plan, f"inputs of the {self.plan.phase} phase", absent[0])
        self._inputs.write(step.arrays)
        if self._poison:
            self.poison()
        self._launch(step)
        names = list(fetch)
        found = self._device.fetch([self.tensor(name) for name in names])
        return lambda: dict(zip(names, found(), strict=True))

    def _launch(self, step: StepInputs) -> None:
        """All steps at once, or cut after every step that a hook waits for."""
        calls = self._calls()
        if not self.after_step:
            is_decode = self.plan.phase == "decode"
            self._program.run(calls, tuple(step.symbols.values()) if is_decode else None)
            return
        begin = 0
        for index in sorted({*self.after_step, len(self.plan.steps) - 1}):
            self._program.run(calls, None, self.table.items_of(begin, index + 1))
            begin = index + 1
            if index in self.after_step:
                self.after_step[index](self, step)

    def read(self, name: str) -> Array:
        """A host copy of an input, buffer, weight or state in its current shape."""
        if name in self._inputs.names:
            return self._read_input(name)
        ref = self.tensor(name)
        return self._device.download(ref.buffer, ref.dtype, ref.shape)

    def _read_input(self, name: str) -> Array:
        dtype, shape = INPUT_SHAPES[name]
        extents = tuple(evaluate(extent, self._symbols) for extent in shape)
        begin, size = self._inputs.offset(name), prod(extents) * itemsize(dtype)
        block = self._device.download(self._inputs.buffer, "i8", (begin + size,))
        return block[begin:].view(numpy_dtype(dtype)).reshape(extents)

    def write(self, name: str, values: Array) -> None:
        """Replace the contents of a buffer or state (for hooks)."""
        ref = self.tensor(name)
        assert values.shape == ref.shape, f"{name} is {ref.shape}, not {values.shape}"
        self._device.upload(ref.buffer, values.astype(numpy_dtype(ref.dtype)))

    def _resize(self, symbols: Mapping[str, int]) -> None:
        self._step_symbols = dict(symbols)
        self._symbols = self._bind_symbols(symbols)
        self._grow(self._symbols)
        self.table.patch(self._symbols)

    def _calls(self) -> list[LibraryCall]:
        return [
            LibraryCall(step.call, tuple(self.tensor(a) for a in step.args), step.op)
            for step in self._call_steps
        ]

    def poison(self) -> None:
        """Fill workspace and outputs with NaN: what a step does not write must not be read.

        But for outputs that the next step begins with.
        """
        for name, buffer in self._memory.items():
            if name not in self._carried:
                self._device.fill(buffer, POISON_BYTE)


def _bytes_expr(shape: tuple[Expr, ...], dtype: str) -> Expr:
    if all(isinstance(extent, int) for extent in shape):
        return prod(int(extent) for extent in shape) * itemsize(dtype)
    return "*".join([str(itemsize(dtype)), *(f"({extent})" for extent in shape)])


def _known_inputs(plan: Plan) -> tuple[str, ...]:
    for name in plan.inputs:
        if name not in INPUT_SHAPES:
            raise _unknown(plan, "an input of docs/package.md", name)
    return plan.inputs


def _derived_inputs(plan: Plan, kernels: Mapping[str, KernelRecord]) -> set[str]:
    """The inputs that some launch writes."""
    written: set[str] = set()
    for step in plan.steps:
        if isinstance(step, LaunchStep):
            each = zip(step.args, kernels[step.launch].args, strict=True)
            written |= {text for text, arg in each if arg.access != "r"}
    return written & set(plan.inputs)


def _unknown(plan: Plan, expected: str, name: str) -> K3Error:
    return K3Error("K3-K003", where=f"{plan.phase} plan", expected=expected, found=name)


def _check_collectives(plan: Plan, num_ranks: int) -> None:
    """Over one rank every collective is the identity; over more it needs the distributed runtime."""
    found = [s for s in plan.steps if isinstance(s, CollectiveStep)]
    if num_ranks == 1 or not found:
        return
    raise K3Error(
        "K3-R007",
        where=f"{plan.phase} plan, {found[0].op}",
        expected="a package for one rank (--tp 1)",
        found=f"{found[0].collective} over {num_ranks} ranks",
        hint="compile with --tp 1, or verify and bench the kernels of this package alone",
    )
