"""One kernel of a package on its own: bound to buffers, launched again and again.

For ``verify``, ``bench`` and ``tune``; the engine launches whole plans instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from k3compiler.package.expr import evaluate
from k3compiler.package.manifest import KernelRecord, LaunchStep
from k3compiler.runtime.device.base import Buffer, Device
from k3compiler.runtime.device.launch_table import LaunchTable


class KernelLaunch:
    """A launch of ``kernel`` with fixed arguments.

    Args:
        device: has loaded the kernel's package.
        buffers: by argument name, one per buffer argument.
        scalars: by argument name, one per scalar argument; the grid rule is evaluated on them.
        symbols: further symbols of the grid rule, if it has any.
    """

    def __init__(
        self,
        device: Device,
        kernel: KernelRecord,
        buffers: Mapping[str, Buffer],
        scalars: Mapping[str, int | float],
        symbols: Mapping[str, int] | None = None,
    ) -> None:
        whole = {n: v for n, v in scalars.items() if isinstance(v, int)} | dict(symbols or {})
        grid = tuple(evaluate(extent, whole) for extent in kernel.grid)
        args = tuple(
            a.name if a.kind == "buffer" else _scalar(scalars[a.name]) for a in kernel.args
        )
        assert len(grid) == 3
        step = LaunchStep(kernel.symbol, args, grid, kernel.op)
        names = [a.name for a in kernel.args if a.kind == "buffer"]
        ids = {name: index for index, name in enumerate(names)}
        self._buffers = [buffers[name] for name in names]  # kept alive
        self.table = LaunchTable(
            [step], {kernel.symbol: kernel}, ids, hidden_slots=device.hidden_slots
        )
        self._device = device
        self._program = device.program(self.table)
        self.bind(dict(zip(names, self._buffers, strict=True)))
        self.table.patch({})

    def bind(self, buffers: Mapping[str, Buffer]) -> None:
        """Use other buffers from the next run on (rotation past the cache, when timing)."""
        names = [a.name for a in self.table.kernels[0].args if a.kind == "buffer"]
        self._buffers = [buffers[name] for name in names]
        self.table.bind(np.array([b.pointer for b in self._buffers], np.int64))

    def run(self) -> None:
        """Launch once; does not wait."""
        self._program.run((), None)


def _scalar(value: float) -> str:
    return str(value) if isinstance(value, int) else f"f:{value!r}"
