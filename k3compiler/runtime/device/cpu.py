"""The CPU: numpy memory, one shared object per instruction level, a pool of threads.

A whole segment of a plan is one native call per thread: the library's ``k3_run`` walks the rows of
the launch table and the threads meet between rows. Row layout (8 x i64):

    function · arguments · programs · gx · gy · cursor (work stealing, 0 at the start) · grain · 0
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.dtypes import numpy_dtype
from k3compiler.errors import K3Error
from k3compiler.package.reader import Package
from k3compiler.runtime.device.base import Array, Buffer, Fetch, LibraryCall, TensorRef
from k3compiler.runtime.device.launch_table import CallItem, Item, LaunchTable

ALIGN_BYTES = 64
_ROW_WORDS = 8
_SYNC_WORDS = 64
_GRABS_PER_THREAD = 4  # programs are taken in about this many pieces by each thread

# Instruction levels, best first, and the /proc/cpuinfo flags that each needs (x86-64 psABI).
_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS: dict[str, frozenset[str]] = {"x86-64-v4": _V4, "x86-64-v3": _V3}

RunFunction = Callable[[int, int, int, int, int], None]


class HostBuffer:
    """Aligned host memory."""

    __slots__ = ("_base", "bytes")

    def __init__(self, num_bytes: int) -> None:
        self._base = np.zeros(max(num_bytes, 1) + ALIGN_BYTES, np.uint8)  # lazily mapped
        skip = -self._base.ctypes.data % ALIGN_BYTES
        self.bytes: NDArray[np.uint8] = self._base[skip : skip + max(num_bytes, 1)]

    @property
    def pointer(self) -> int:
        return self.bytes.ctypes.data

    @property
    def num_bytes(self) -> int:
        return len(self.bytes)


def host_bytes(buffer: Buffer) -> NDArray[np.uint8]:
    """The bytes of a buffer that must be host memory."""
    assert isinstance(buffer, HostBuffer), f"{buffer} is not host memory"
    return buffer.bytes


def tensor_view(ref: TensorRef) -> Array:
    """A host tensor as a numpy view."""
    dtype = numpy_dtype(ref.dtype)
    count = int(np.prod(ref.shape)) * dtype.itemsize
    return host_bytes(ref.buffer)[:count].view(dtype).reshape(ref.shape)


class HostStaging:
    """The buffer itself: what is filled is there."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory

    def room(self) -> NDArray[np.uint8]:
        return self._memory

    def send(self, num_bytes: int) -> None:
        """Nothing is left to do."""


class HostMemory:
    """The memory half of a device, on the host; the CPU and the null device share it."""

    def allocate(self, num_bytes: int, *, fill: int | None = None) -> Buffer:
        buffer = HostBuffer(num_bytes)
        if fill:
            buffer.bytes.fill(fill)
        return buffer

    def free_bytes(self) -> int:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(n.split()[1]) for n in lines if n.startswith("MemAvailable")) << 10

    def fill(self, buffer: Buffer, value: int) -> None:
        host_bytes(buffer).fill(value)

    def upload(self, buffer: Buffer, data: Array) -> None:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        host_bytes(buffer)[: len(flat)] = flat

    def staging(self, buffer: Buffer, num_bytes: int) -> HostStaging:
        return HostStaging(host_bytes(buffer)[:num_bytes])

    def fetch(self, refs: Sequence[TensorRef]) -> Fetch:
        found = [tensor_view(ref).copy() for ref in refs]
        return lambda: found

    def write(self, ref: TensorRef, fill: Callable[[Array], None]) -> None:
        fill(tensor_view(ref))

    def tensor(self, ref: TensorRef) -> Array:
        return tensor_view(ref)

    def download(self, buffer: Buffer, dtype: str, shape: tuple[int, ...]) -> Array:
        return tensor_view(TensorRef(buffer, dtype, shape)).copy()

    def synchronize(self) -> None:
        """Host work is done when its call returns."""


class CpuDevice(HostMemory):
    """Runs a package's x86-64 library.

    Args:
        num_threads: threads that run kernels, the caller's included.
        interpret: launch kernel by kernel from Python on one thread (for debugging).
        level: the instruction level to run (one of :func:`usable_levels`); None is the best.
    """

    name = "cpu"
    hidden_slots = 0
    exact_rows = True

    def __init__(
        self, *, num_threads: int, interpret: bool = False, level: str | None = None
    ) -> None:
        self.num_threads, self.interpret, self.level = num_threads, interpret, level
        self._library: ctypes.CDLL | None = None
        self._pool: _ThreadPool | None = None

    def load(self, package: Package) -> None:
        target = package.manifest.target
        if target.kind != "cpu":
            raise K3Error(
                "K3-K009", where="cpu device", expected="a package for cpu", found=target.name
            )
        self._library = load_library(package, self.level)
        if not self.interpret and self._pool is None:
            self._pool = _ThreadPool(self.num_threads)

    def function_address(self, symbol: str) -> int:
        """The address of a kernel."""
        assert self._library is not None, "no package is loaded"
        return _address(self._library, symbol)

    def program(self, table: LaunchTable) -> CpuProgram:
        assert self._library is not None, "no package is loaded"
        functions = [self.function_address(s.launch) for s in table.launches]
        if self.interpret:
            return CpuProgram(table, functions, _interpret_rows, 1)
        assert self._pool is not None
        pool, run = self._pool, _run_function(self._library)
        return CpuProgram(
            table, functions, lambda rows, n: pool.run(run, rows, n), self.num_threads
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class CpuProgram:
    """The launch table with the columns that ``k3_run`` reads."""

    def __init__(
        self,
        table: LaunchTable,
        functions: Sequence[int],
        run_rows: Callable[[int, int], None],
        num_threads: int,
    ) -> None:
        self._table, self._run_rows = table, run_rows
        self._pieces = num_threads * _GRABS_PER_THREAD
        self._memory = HostBuffer((len(table) + 1) * _ROW_WORDS * 8)
        rows = self._memory.bytes.view(np.int64).reshape(-1, _ROW_WORDS)[: len(table)]
        self._rows: NDArray[np.int64] = rows
        rows[:, 0] = np.array(functions, np.int64)
        rows[:, 1] = table.arg_addresses()
        self._base = self._memory.pointer

    def run(
        self,
        calls: Sequence[LibraryCall],
        graph_key: tuple[int, ...] | None,
        items: Sequence[Item] | None = None,
    ) -> None:
        rows, grids = self._rows, self._table.grids
        rows[:, 2] = grids.prod(axis=1)
        rows[:, 3:5] = grids[:, :2]
        rows[:, 5] = 0
        rows[:, 6] = np.maximum(1, rows[:, 2] // self._pieces)
        for item in self._table.items if items is None else items:
            if isinstance(item, CallItem):
                _library_call(calls[item.index])
            else:
                address = self._base + item.first * _ROW_WORDS * 8
                self._run_rows(address, item.end - item.first)


def _interpret_rows(address: int, count: int) -> None:
    """Run rows one by one on this thread, through ctypes."""
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)
    words = (ctypes.c_int64 * (count * _ROW_WORDS)).from_address(address)
    for row in range(0, count * _ROW_WORDS, _ROW_WORDS):
        function, args, programs, gx, gy = words[row : row + 5]
        if programs:
            kernel(function)(args, 0, programs, gx, gy)


def _library_call(call: LibraryCall) -> None:
    assert call.name == "gemm", f"the cpu device has no library call {call.name}"
    x, w, y = (tensor_view(arg) for arg in call.args)
    y[...] = np.matmul(x.astype(np.float32), w.astype(np.float32).T)


class _ThreadPool:
    """Threads that wait for a table and run it together; thread 0 is the caller."""

    def __init__(self, num_threads: int) -> None:
        self._sync = HostBuffer(_SYNC_WORDS * 8)
        self._queues: list[SimpleQueue[tuple[Any, ...] | None]] = []
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        for thread in range(1, num_threads):
            queue: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
            self._queues.append(queue)
            worker = threading.Thread(target=self._work, args=(thread, queue), daemon=True)
            worker.start()

    def _work(self, thread: int, queue: SimpleQueue[tuple[Any, ...] | None]) -> None:
        while (job := queue.get()) is not None:
            function, rows, count, threads, sync = job
            function(rows, count, thread, threads, sync)
            self._done.put(None)

    def run(self, function: RunFunction, rows: int, count: int) -> None:
        """Run ``count`` rows at address ``rows`` on every thread; returns when all are done."""
        self._sync.bytes.fill(0)
        threads, sync = len(self._queues) + 1, self._sync.pointer
        for queue in self._queues:
            queue.put((function, rows, count, threads, sync))
        function(rows, count, 0, threads, sync)
        for _ in self._queues:
            self._done.get()

    def close(self) -> None:
        for queue in self._queues:
            queue.put(None)
        self._queues = []


def usable_levels(package: Package) -> list[str]:
    """The instruction levels of a package that this CPU has, best first.

    Raises:
        K3Error: K3-R006 none.
    """
    flags = cpu_flags()
    have = package.manifest.libraries
    levels = [level for level, needs in LEVELS.items() if level in have and needs <= flags]
    if not levels:
        lacking = sorted(LEVELS["x86-64-v3"] - flags)
        raise K3Error(
            "K3-R006",
            where="cpu device",
            expected=f"a CPU with one of {', '.join(have) or 'no library'}",
            found=f"a CPU without {', '.join(lacking)}" if lacking else "no such library",
        )
    return levels


def load_library(package: Package, level: str | None = None) -> ctypes.CDLL:
    """The package's library for a level of :func:`usable_levels`, the best where None.

    Raises:
        K3Error: K3-R006 no level fits, K3-R009 the file cannot be loaded.
    """
    levels = usable_levels(package)
    assert level is None or level in levels, f"{level} is not among {levels}"
    path = package.file(package.manifest.libraries[level or levels[0]]).absolute()
    try:
        return ctypes.CDLL(str(path))
    except OSError as fault:
        raise K3Error(
            "K3-R009", where=str(path), expected="a shared object", found=str(fault)
        ) from None


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature flags of the first processor."""
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def _run_function(library: ctypes.CDLL) -> RunFunction:
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)
    return function(_address(library, "k3_run"))


def _address(library: ctypes.CDLL, symbol: str) -> int:
    try:
        address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    except AttributeError:
        address = None
    if address is None:
        raise K3Error(
            "K3-R009", where="kernel library", expected=f"the symbol {symbol}", found="none"
        )
    return address
