"""Runs one kernel of a package alone on a device, with host arrays in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from k3compiler.check.case import MEMORY, Array
from k3compiler.package.expr import bind_extents
from k3compiler.package.manifest import KernelRecord, LaunchStep
from k3compiler.package.shuffles import argument_layouts, shuffled
from k3compiler.runtime.device.base import Device
from k3compiler.runtime.device.launch_table import LaunchTable

Arguments = Mapping[str, Array | int | float]


class KernelRunner(Protocol):
    """Whatever can run a kernel: a device with the package's binaries, or its tile programs."""

    def run(self, kernel: KernelRecord, arguments: Arguments) -> dict[str, Array]:
        """Buffers by name after one launch over copies of ``arguments``."""
        ...


class DeviceRunner:
    """Launches the package's own binaries."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def run(self, kernel: KernelRecord, arguments: Arguments) -> dict[str, Array]:
        arguments = as_packaged(kernel, arguments)
        names = [a.name for a in kernel.args if a.kind == "buffer"]
        arrays = {name: np.asarray(arguments[name]) for name in names}
        buffers = {name: self.device.allocate(arrays[name].nbytes) for name in names}
        for name, array in arrays.items():
            self.device.upload(buffers[name], np.ascontiguousarray(array))
        table = single_launch(kernel, arguments, hidden_slots=self.device.hidden_slots)
        table.bind(np.array([buffers[name].pointer for name in names], np.int64))
        table.patch(symbol_values(kernel, arguments))
        self.device.program(table).run([], None)
        written = [a for a in kernel.args if a.kind == "buffer" and a.access != "r"]
        return {
            a.name: self.device.download(buffers[a.name], a.dtype, arrays[a.name].shape)
            for a in written
        }


def as_packaged(kernel: KernelRecord, arguments: Arguments) -> dict[str, Any]:
    """The arguments with weights in the layouts that the kernel's binary reads (docs/package.md)."""
    layouts = argument_layouts(kernel)
    return {
        name: shuffled(layouts[name], value)
        if name in layouts and isinstance(value, np.ndarray)
        else value
        for name, value in arguments.items()
    }


def single_launch(
    kernel: KernelRecord, arguments: Arguments, *, hidden_slots: int = 0
) -> LaunchTable:
    """A launch table of one kernel; buffers are numbered in argument order."""
    names = [a.name for a in kernel.args if a.kind == "buffer"]
    texts = tuple(_argument_text(a.name, a.kind, a.dtype, arguments) for a in kernel.args)
    step = LaunchStep(kernel.symbol, texts, kernel.grid, kernel.op)
    ids = {name: i for i, name in enumerate(names)}
    return LaunchTable([step], {kernel.symbol: kernel}, ids, hidden_slots=hidden_slots)


def _argument_text(name: str, kind: str, dtype: str, arguments: Arguments) -> str:
    if kind == "buffer" or name not in arguments:
        return name
    return f"f:{arguments[name]}" if dtype == "f32" else str(arguments[name])


def symbol_values(kernel: KernelRecord, arguments: Arguments) -> dict[str, int]:
    """Symbolic extents and integer scalars of a kernel for these arguments."""
    values: dict[str, int] = {}
    for argument in kernel.args:
        given: Any = arguments.get(argument.name)
        if argument.kind == "scalar" and argument.dtype == "i32" and given is not None:
            values[argument.name] = int(given)
        elif argument.kind == "buffer":
            assert isinstance(given, np.ndarray), f"{argument.name}: an array wanted"
            assert given.dtype == MEMORY[argument.dtype], f"{argument.name}: {given.dtype}"
            pairs = zip(argument.shape, given.shape, strict=True)
            values |= bind_extents((n, size) for n, size in pairs if isinstance(n, str))
    return values
