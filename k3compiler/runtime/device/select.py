"""From a device's name to a device."""

from __future__ import annotations

from k3compiler import knobs
from k3compiler.errors import K3Error
from k3compiler.package.manifest import TargetRecord
from k3compiler.runtime.device.base import Device

_DEFAULTS = {"cpu": "cpu", "cuda": "cuda:0", "hip": "hip:0"}


def open_device(
    name: str | None,
    target: TargetRecord,
    *,
    num_threads: int | None = None,
    interpret: bool = False,
) -> Device:
    """Open ``cpu``, ``cuda``, ``cuda:N``, ``hip``, ``hip:N`` or ``null``; None takes what ``target`` needs.

    Args:
        num_threads: of the CPU device; None asks K3C_NUM_THREADS.
        interpret: CPU only, launch kernel by kernel from Python.

    Raises:
        K3Error: K3-R006 no such device here.
    """
    chosen = name or _DEFAULTS.get(target.kind, target.kind)
    kind, _, index = chosen.partition(":")
    if kind == "cpu" and not index:
        from k3compiler.runtime.device.cpu import CpuDevice

        threads = num_threads or knobs.NUM_THREADS.get()
        return CpuDevice(num_threads=threads, interpret=interpret)
    if kind == "cuda" and (not index or index.isdecimal()):
        from k3compiler.runtime.device.cuda import CudaDevice

        return CudaDevice(int(index or 0))
    if kind == "hip" and (not index or index.isdecimal()):
        from k3compiler.runtime.device.hip import HipDevice

        return HipDevice(int(index or 0))
    if chosen == "null":
        from k3compiler.runtime.device.null import NullDevice

        return NullDevice()
    raise K3Error(
        "K3-R006",
        where=f"device {chosen}",
        expected="cpu, cuda, cuda:N, hip, hip:N or null",
        found=f"a package for {target.name}" if name is None else repr(name),
    )
