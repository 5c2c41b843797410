"""An NVIDIA GPU: memory and library calls through torch, cubins through cuda-bindings.

Arguments are never packed per launch: the launch table's slots are read by the driver in place,
``kernelParams`` being the addresses of a launch's slots. Triton's two hidden pointers (global and
profile scratch) are the last two. A decode step is recorded once per row count as a CUDA graph and
replayed; recordings are dropped when a buffer moves. In a recording the plan's branches run beside each other.

A launch behind another on its stream asks to be started early (programmatic dependent launch) where its kernel
waits for the former grid by itself; all kernels of ours do, ahead of their first access to memory that a kernel
writes, so that the end of one is the end of all before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler import knobs
from k3compiler.dtypes import numpy_dtype
from k3compiler.errors import K3Error
from k3compiler.package.manifest import KernelRecord
from k3compiler.package.reader import Package
from k3compiler.runtime.device.base import Array, Buffer, Fetch, LibraryCall, TensorRef
from k3compiler.runtime.device.branches import Branches, places_of
from k3compiler.runtime.device.launch_table import CallItem, Item, LaunchTable
from k3compiler.runtime.device.pinned import PinnedStaging, fetch

_STATIC_SHARED_BYTES = 48 << 10
_TORCH_NAMES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i32": "int32",
    "i8": "uint8",
    "e4m3": "float8_e4m3fn",
}


class CudaBuffer:
    """Device memory owned by a torch byte tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    @property
    def pointer(self) -> int:
        return int(self.tensor.data_ptr())

    @property
    def num_bytes(self) -> int:
        return int(self.tensor.numel())


class CudaDevice:
    """One GPU. Torch and cuda-bindings are imported here and nowhere else in the runtime.

    Args:
        index: CUDA device index.
        graphs: record decode steps as CUDA graphs.

    Raises:
        K3Error: K3-R006 no such device, or a Python package is missing.
    """

    hidden_slots = 2
    exact_rows = False
    kind, binary, warp_threads = "cuda", "cubin", 32
    branches = early_start = True  # what the knobs say by default

    def __init__(self, index: int = 0, *, graphs: bool = True) -> None:
        self.torch, self.driver = self._open()
        if not self.torch.cuda.is_available() or index >= self.torch.cuda.device_count():
            count = self.torch.cuda.device_count() if self.torch.cuda.is_available() else 0
            raise K3Error(
                "K3-R006",
                where=f"cuda:{index}",
                expected="a CUDA device with that index",
                found=f"{count} CUDA devices",
                hint="a package for cpu runs without a GPU",
            )
        self.name, self.index = f"cuda:{index}", index
        self.nvtx = knobs.NVTX.get()
        self.graphs = graphs and not self.nvtx
        self.branches, self.early_start = knobs.BRANCHES.get(), knobs.EARLY_START.get()
        self.torch.cuda.set_device(index)
        self.torch.zeros(1, device=self.name)  # makes the context current
        self._package: Package | None = None
        self._kernels: dict[str, Any] = {}
        self._modules: list[Any] = []

    def _open(self) -> tuple[Any, Any]:
        """Torch and the driver's functions, each ``f(*args) -> (status, *values)``."""
        return import_torch(), _import_driver()

    @property
    def isa(self) -> str:
        """The ISA of this device's own cubins, e.g. ``sm_90a``."""
        major, minor = self.torch.cuda.get_device_capability(self.index)
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")

    def load(self, package: Package) -> None:
        target = package.manifest.target
        if target.kind != self.kind or target.isa != self.isa:
            raise K3Error(
                "K3-K009",
                where=f"{self.name} ({self.torch.cuda.get_device_name(self.index)})",
                expected=f"a package for {self.isa}",
                found=f"{target.name} ({target.isa})",
                hint="compile for this device; k3c targets lists the names",
            )
        self._package, self._kernels = package, {}

    def kernel(self, record: KernelRecord) -> Any:
        """The driver's function for a kernel, its module loaded on first use.

        Raises:
            K3Error: K3-R009 no cubin, or the driver refuses it.
        """
        if record.symbol not in self._kernels:
            self._kernels[record.symbol] = self._load_kernel(record)
        return self._kernels[record.symbol]

    def _load_kernel(self, record: KernelRecord) -> Any:
        assert self._package is not None, "no package is loaded"
        if self.binary not in record.files or record.launch.num_ctas != 1:
            raise K3Error(
                "K3-R009",
                where=f"kernel {record.symbol}",
                expected=f"a {self.binary} launched without clusters",
                found=f"files {sorted(record.files)}, {record.launch.num_ctas} CTAs a cluster",
            )
        code = self._package.read(record.files[self.binary])
        module = self._driver(record.symbol, "cuModuleLoadData", code)
        self._modules.append(module)
        function = self._driver(
            record.symbol, "cuModuleGetFunction", module, record.symbol.encode()
        )
        self._allow_shared(record, function)
        return function

    def _allow_shared(self, record: KernelRecord, function: Any) -> None:
        """More shared memory than a launch may ask for unannounced."""
        shared = record.launch.shared_bytes
        if shared > _STATIC_SHARED_BYTES:
            which = self.driver.CUfunction_attribute
            attribute = which.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._driver(record.symbol, "cuFuncSetAttribute", function, attribute, shared)

    def early_config(self, threads: int, shared_bytes: int) -> Any:
        """A launch configuration, but for grid and stream, that starts a kernel while the former one ends."""
        driver = self.driver
        attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
        which = driver.CUlaunchAttributeID
        attribute.id = which.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        value.programmaticStreamSerializationAllowed = 1
        attribute.value = value
        config = driver.CUlaunchConfig()
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared_bytes
        config.attrs, config.numAttrs = [attribute], 1
        return config

    def _driver(self, symbol: str, name: str, *args: Any) -> Any:
        """Call the driver; its error becomes K3-R009 with the kernel's name."""
        status, *values = getattr(self.driver, name)(*args)
        if int(status) == 0:
            return values[0] if values else None
        raise K3Error(
            "K3-R009", where=f"kernel {symbol}", expected=f"{name} to succeed", found=str(status)
        )

    def allocate(self, num_bytes: int, *, fill: int | None = None) -> Buffer:
        size = max(num_bytes, 1)
        make = self.torch.empty if fill is None else self.torch.zeros
        buffer = CudaBuffer(make(size, dtype=self.torch.uint8, device=self.name))
        if fill:
            buffer.tensor.fill_(fill)
        return buffer

    def free_bytes(self) -> int:
        self.torch.cuda.empty_cache()
        free, _ = self.torch.cuda.mem_get_info(self.index)
        return int(free)

    def fill(self, buffer: Buffer, value: int) -> None:
        _bytes(buffer).fill_(value)

    def upload(self, buffer: Buffer, data: Array) -> None:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if not flat.flags.writeable:
            flat = flat.copy()
        if len(flat):
            _bytes(buffer)[: len(flat)].copy_(self.torch.from_numpy(flat))

    def staging(self, buffer: Buffer, num_bytes: int) -> PinnedStaging:
        return PinnedStaging(self.torch, _bytes(buffer)[:num_bytes])

    def fetch(self, refs: Sequence[TensorRef]) -> Fetch:
        sizes = [int(np.prod(r.shape)) * numpy_dtype(r.dtype).itemsize for r in refs]
        each = zip(refs, sizes, strict=True)
        return fetch(self.torch, [(_bytes(r.buffer)[:n], r.dtype, r.shape) for r, n in each])

    def write(self, ref: TensorRef, fill: Callable[[Array], None]) -> None:
        host = np.empty(ref.shape, numpy_dtype(ref.dtype))
        fill(host)
        self.upload(ref.buffer, host)

    def download(self, buffer: Buffer, dtype: str, shape: tuple[int, ...]) -> Array:
        kind = numpy_dtype(dtype)
        count = int(np.prod(shape)) * kind.itemsize
        host = _bytes(buffer)[:count].cpu().numpy()
        return host.view(kind).reshape(shape)

    def tensor(self, ref: TensorRef) -> Any:
        """A torch view of an array."""
        kind = getattr(self.torch, _TORCH_NAMES[ref.dtype])
        count = int(np.prod(ref.shape)) * numpy_dtype(ref.dtype).itemsize
        return _bytes(ref.buffer)[:count].view(kind).view(ref.shape)

    def program(self, table: LaunchTable) -> CudaProgram:
        return CudaProgram(self, table)

    def synchronize(self) -> None:
        self.torch.cuda.synchronize(self.index)

    def close(self) -> None:
        self.synchronize()
        for module in self._modules:
            self.driver.cuModuleUnload(module)
        self._modules, self._kernels = [], {}

    def launch_range(self, label: str) -> AbstractContextManager[None]:
        """An NVTX range around a launch, if K3C_NVTX asks for it."""
        return self._range(label) if self.nvtx else nullcontext()

    @contextmanager
    def _range(self, label: str) -> Iterator[None]:
        self.torch.cuda.nvtx.range_push(label)
        try:
            yield
        finally:
            self.torch.cuda.nvtx.range_pop()


class CudaProgram:
    """A plan's launches: functions and argument addresses fixed, grids read at launch."""

    def __init__(self, device: CudaDevice, table: LaunchTable) -> None:
        self._device, self._table = device, table
        self._functions = [device.kernel(k) for k in table.kernels]
        slots = table.args.ctypes.data + 8 * np.arange(len(table.args), dtype=np.int64)
        self._slots: NDArray[np.int64] = slots  # kernelParams of every launch, end to end
        self._params = (slots.ctypes.data + 8 * table.starts).tolist()
        self._threads = [device.warp_threads * k.launch.num_warps for k in table.kernels]
        self._shared = [k.launch.shared_bytes for k in table.kernels]
        self._labels = [_label(s.layer, s.op, s.launch) for s in table.launches]
        per_program = [k.launch.global_scratch_bytes for k in table.kernels]
        self._scratch_bytes = np.array(per_program, np.int64)
        places = places_of(table.steps)
        is_split = any(p.branch for p in places) and len(table.items) <= 1
        shares_scratch = bool(self._scratch_bytes.any())
        self._places = places if device.branches and is_split and not shares_scratch else None
        self._early = self._early_configs() if device.early_start else {}
        self._scratch: Buffer | None = None
        self._graphs: dict[tuple[int, ...], Any] = {}
        self._version = -1

    def run(
        self,
        calls: Sequence[LibraryCall],
        graph_key: tuple[int, ...] | None,
        items: Sequence[Item] | None = None,
    ) -> None:
        self._place_scratch()
        if self._version != self._table.version:
            self._graphs, self._version = {}, self._table.version
        if graph_key is None or items is not None or not self._device.graphs:
            self._launch(calls, self._in_order(), items)
        elif graph_key in self._graphs:
            self._graphs[graph_key].replay()
        else:
            self._launch(calls, self._in_order())  # this step now; the recording is for the next
            self._graphs[graph_key] = self._record(calls)

    def _in_order(self) -> Branches:
        return Branches(self._device.torch, self._device.index, None)

    def _record(self, calls: Sequence[LibraryCall]) -> Any:
        torch = self._device.torch
        self._device.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            branches = Branches(torch, self._device.index, self._places)
            self._launch(calls, branches)
            branches.join()
        return graph

    def _launch(
        self,
        calls: Sequence[LibraryCall],
        branches: Branches,
        items: Sequence[Item] | None = None,
    ) -> None:
        grids = self._table.grids.tolist()
        for item in self._table.items if items is None else items:
            if isinstance(item, CallItem):
                with self._device.launch_range(calls[item.index].label):
                    self._call(calls[item.index])
                branches.interrupt()
                continue
            for launch in range(item.first, item.end):
                stream, follows = branches.enter(launch)
                is_any = all(grids[launch])
                if is_any:
                    with self._device.launch_range(self._labels[launch]):
                        self._launch_one(launch, grids[launch], stream, follows)
                branches.leave(launch, launched=is_any)

    def _launch_one(self, launch: int, grid: list[int], stream: int, follows: bool) -> None:
        driver, params = self._device.driver, self._params[launch]
        config = self._early.get(launch) if follows else None
        if config is None:
            (status,) = driver.cuLaunchKernel(
                self._functions[launch], *grid, self._threads[launch], 1, 1,
                self._shared[launch], stream, params, 0,
            )  # fmt: skip
        else:
            config.gridDimX, config.gridDimY, config.gridDimZ = grid
            config.hStream = stream
            (status,) = driver.cuLaunchKernelEx(config, self._functions[launch], params, 0)
        if int(status) != 0:
            raise K3Error(
                "K3-R009",
                where=f"{self._labels[launch]}",
                expected="the driver to accept the launch",
                found=f"{status}: {self._table.describe(launch)}",
            )

    def _early_configs(self) -> dict[int, Any]:
        """Launch configurations that ask for an early start, of the kernels that wait by themselves."""
        return {
            launch: self._device.early_config(self._threads[launch], self._shared[launch])
            for launch, kernel in enumerate(self._table.kernels)
            if kernel.launch.awaits_former
        }

    def _call(self, call: LibraryCall) -> None:
        assert call.name == "gemm", f"the cuda device has no library call {call.name}"
        x, w, y = (self._device.tensor(arg) for arg in call.args)
        if x.shape[0]:
            self._device.torch.matmul(x, w.t(), out=y)

    def _place_scratch(self) -> None:
        """Global scratch: one block for all launches, which run one after another."""
        if not self._scratch_bytes.any():
            return
        programs = self._table.grids.prod(axis=1)
        need = int((self._scratch_bytes * programs).max())
        if self._scratch is None or self._scratch.num_bytes < need:
            self._device.synchronize()
            self._scratch = self._device.allocate(need)
            self._graphs = {}
            self._table.args[self._table.hidden] = self._scratch.pointer


def _label(layer: int | None, op: str, symbol: str) -> str:
    return f"{op} {symbol}" if layer is None else f"layer {layer} {op} {symbol}"


def _bytes(buffer: Buffer) -> Any:
    assert isinstance(buffer, CudaBuffer), f"{buffer} is not device memory"
    return buffer.tensor


@functools.cache
def import_torch() -> Any:
    def load() -> Any:
        import torch  # pyright: ignore[reportMissingImports]

        return torch

    return _import(load, "torch")


@functools.cache
def _import_driver() -> Any:
    def load() -> Any:
        from cuda.bindings import driver  # pyright: ignore[reportMissingImports]

        return driver

    return _import(load, "cuda-bindings")


def _import(load: Callable[[], Any], package: str) -> Any:
    try:
        return load()
    except ImportError as fault:
        raise K3Error(
            "K3-R006",
            where="cuda device",
            expected=f"the Python package {package}",
            found=str(fault),
            hint="pip install k3compiler[cuda]",
        ) from None
