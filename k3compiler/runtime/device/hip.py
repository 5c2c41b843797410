"""An AMD GPU: torch's ROCm build for memory and streams, code objects through the HIP runtime library by ctypes.

Everything but loading and launching is the CUDA device's: torch's ROCm build answers to ``torch.cuda``, graphs
included. HIP reads ``kernelParams`` as CUDA does, taking the size of every argument from the code object's own note, so
that the launch table's 8-byte slots serve both. Slots past a kernel's arguments (Triton's two hidden pointers, which
FlyDSL's kernels lack) are not read. Never run on hardware; its packing is tested against code objects and a stand-in.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.package.manifest import KernelRecord
from k3compiler.runtime.device.cuda import CudaDevice, import_torch

LIBRARY = "libamdhip64.so"


class HipStatus(int):
    """A ``hipError_t``; 0 is success."""

    name = "unknown"

    def __str__(self) -> str:
        return f"hipError {int(self)} ({self.name})"


class HipLibrary:
    """The functions of ``libamdhip64`` that launches need, as the CUDA driver names and shapes them.

    Raises:
        OSError: the library cannot be loaded.
    """

    def __init__(self, path: str = LIBRARY) -> None:
        library = ctypes.CDLL(path)
        handle, handles = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        number = ctypes.c_uint
        self._load = _function(library.hipModuleLoadData, [handles, ctypes.c_char_p])
        self._find = _function(library.hipModuleGetFunction, [handles, handle, ctypes.c_char_p])
        self._unload = _function(library.hipModuleUnload, [handle])
        launch = [handle, *[number] * 7, handle, handle, handle]
        self._launch = _function(library.hipModuleLaunchKernel, launch)
        self._name_of = library.hipGetErrorName
        self._name_of.argtypes, self._name_of.restype = [ctypes.c_int], ctypes.c_char_p

    def _status(self, code: int) -> HipStatus:
        status = HipStatus(code)
        if code:
            status.name = (self._name_of(code) or b"unknown").decode()
        return status

    def cuModuleLoadData(self, code: bytes) -> tuple[HipStatus, int]:
        """A module of a code object's bytes."""
        module = ctypes.c_void_p()
        status = self._status(self._load(ctypes.byref(module), code))
        return status, module.value or 0

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[HipStatus, int]:
        function = ctypes.c_void_p()
        status = self._status(self._find(ctypes.byref(function), module, name))
        return status, function.value or 0

    def cuModuleUnload(self, module: int) -> tuple[HipStatus]:
        return (self._status(self._unload(module)),)

    def cuLaunchKernel(self, function: int, *rest: int) -> tuple[HipStatus]:
        """``rest``: grid (3, in workgroups), block (3), LDS bytes, stream, address of the arguments' addresses, 0."""
        return (self._status(self._launch(function, *rest)),)


def _function(function: Any, arguments: list[Any]) -> Callable[..., int]:
    function.argtypes, function.restype = arguments, ctypes.c_int
    return function


class HipDevice(CudaDevice):
    """One AMD GPU.

    Args:
        index: device index.
        graphs: record decode steps as graphs.

    Raises:
        K3Error: K3-R006 no such device, no ROCm build of torch, or no HIP runtime library.
    """

    kind, binary, warp_threads = "hip", "hsaco", 64

    def _open(self) -> tuple[Any, Any]:
        torch = import_torch()
        if getattr(torch.version, "hip", None) is None:
            raise _absent("a ROCm build of torch", f"torch {torch.__version__}")
        return torch, _open_library()

    @property
    def isa(self) -> str:
        """The ISA of this device's code objects, e.g. ``gfx950``."""
        name: str = self.torch.cuda.get_device_properties(self.index).gcnArchName
        return name.partition(":")[0]

    def _allow_shared(self, record: KernelRecord, function: Any) -> None:
        """Nothing: a launch may ask for all the LDS that the chip has."""


@functools.cache
def _open_library() -> HipLibrary:
    try:
        return HipLibrary()
    except OSError as fault:
        raise _absent(f"the HIP runtime library {LIBRARY}", str(fault)) from None


def _absent(expected: str, found: str) -> K3Error:
    return K3Error(
        "K3-R006",
        where="hip device",
        expected=expected,
        found=found,
        hint="k3c verify PKG --on emulator runs the package's code objects without a GPU",
    )
