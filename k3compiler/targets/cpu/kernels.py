"""Tile programs on this machine's CPU, with numpy arguments: for tests and ``k3c verify --on cpu``."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from k3compiler.errors import K3Error
from k3compiler.ir.bindings import ir
from k3compiler.ir.context import parse_module
from k3compiler.ir.tile_program import ArgumentInfo, ProgramInfo, describe
from k3compiler.targets.cpu.library import Level, compile_library
from k3compiler.targets.cpu.runner import ROW_WORDS, RUNNER_SYMBOL, SYNC_WORDS

Array = np.ndarray[Any, np.dtype[Any]]
_V4_FLAGS = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
_V3_FLAGS = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
_ITEM_BYTES = {"f32": 4, "i32": 4, "bf16": 2, "f16": 2, "i16": 2, "e4m3": 1, "i8": 1}


def host_level() -> Level:
    """The highest ISA level of this machine that we compile for.

    Raises:
        K3Error: K3-T023 where the CPU has not even AVX2 and FMA.
    """
    flags: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.partition(":")[2].split())
            break
    if flags >= _V4_FLAGS | _V3_FLAGS:
        return "x86-64-v4"
    if flags >= _V3_FLAGS:
        return "x86-64-v3"
    missing = ", ".join(sorted(_V3_FLAGS - flags))
    raise K3Error("K3-T023", where="/proc/cpuinfo", expected="x86-64-v3", found=f"no {missing}")


class CpuKernels:
    """A list of tile programs, compiled and loaded."""

    def __init__(self, programs: Sequence[ir.Module | str], level: Level | None = None) -> None:
        modules = [parse_module(p) if isinstance(p, str) else p for p in programs]
        self.infos: dict[str, ProgramInfo] = {i.symbol: i for i in map(describe, modules)}
        self.image = compile_library(modules, level or host_level())
        self._library = load_library(self.image)

    def run(
        self,
        symbol: str,
        arguments: Mapping[str, Array | int | float],
        grid: Sequence[int],
        *,
        threads: int = 1,
        grain: int = 1,
    ) -> None:
        """Runs one kernel over ``grid``; arrays are changed in place.

        ``arguments`` maps argument names to arrays of the exact memory dtype and to numbers; symbols may be left
        out, they follow from the arrays' shapes.
        """
        info = self.infos[symbol]
        dense = {
            n: np.ascontiguousarray(v) if isinstance(v, np.ndarray) else v
            for n, v in arguments.items()
        }
        words = argument_words(info, dense)
        x, y, z = grid
        row = np.zeros(ROW_WORDS, np.int64)
        row[:7] = (self.address(symbol), words.ctypes.data, x * y * z, x, y, 0, grain)
        self._execute(row, threads)
        assert row[5] == 0, "the runner left its cursor behind"
        for name, given in arguments.items():
            if isinstance(given, np.ndarray) and dense[name] is not given:
                given[...] = dense[name]

    def address(self, symbol: str) -> int:
        """Where a kernel's code is."""
        pointer = ctypes.cast(getattr(self._library, symbol), ctypes.c_void_p).value
        assert pointer is not None
        return pointer

    def _execute(self, table: Array, threads: int) -> None:
        sync = np.zeros(SYNC_WORDS, np.int64)
        run = getattr(self._library, RUNNER_SYMBOL)
        run.restype, run.argtypes = (
            ctypes.c_int64,
            [ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p],
        )
        launches = table.size // ROW_WORDS

        def work(thread: int) -> None:
            run(table.ctypes.data, launches, thread, threads, sync.ctypes.data)

        others = [threading.Thread(target=work, args=(i,)) for i in range(1, threads)]
        for other in others:
            other.start()
        work(0)
        for other in others:
            other.join()


def load_library(image: bytes) -> ctypes.CDLL:
    """Loads a shared object from memory (through a file named for its content; dlopen caches by name)."""
    name = hashlib.sha256(image).hexdigest()[:24]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"k3-{name}.so"
        path.write_bytes(image)
        return ctypes.CDLL(str(path))


def argument_words(info: ProgramInfo, arguments: Mapping[str, Array | int | float]) -> Array:
    """The argument words of the kernel's C signature (the arrays must outlive their use)."""
    symbols = info.symbols_from(arguments)
    words = np.zeros(max(len(info.arguments), 1), np.int64)
    for position, argument in enumerate(info.arguments):
        words[position] = _word(argument, arguments, symbols)
    return words


def _word(
    argument: ArgumentInfo, arguments: Mapping[str, Array | int | float], symbols: Mapping[str, int]
) -> int:
    given = arguments.get(argument.name)
    if argument.shape is not None:
        assert isinstance(given, np.ndarray), f"buffer {argument.name} wants an array"
        assert given.flags.c_contiguous, f"buffer {argument.name} wants a contiguous array"
        wanted = _ITEM_BYTES[argument.dtype]
        assert given.itemsize == wanted, f"buffer {argument.name}: items of {wanted} bytes wanted"
        return given.ctypes.data
    if argument.dtype == "f32":
        return int(np.asarray(given, np.float32).view(np.uint32))
    number = symbols[argument.name] if given is None else given
    return int(np.asarray(number, np.int32).view(np.uint32))


def load_program(module: ir.Module | str) -> _Callable:
    """One tile program as a callable ``f(arguments, grid, threads=1)``."""
    kernels = CpuKernels([module])
    return _Callable(kernels, next(iter(kernels.infos)))


class _Callable:
    def __init__(self, kernels: CpuKernels, symbol: str) -> None:
        self.kernels, self.symbol = kernels, symbol
        self.info = kernels.infos[symbol]

    def __call__(
        self, arguments: Mapping[str, Array | int | float], grid: Sequence[int], threads: int = 1
    ) -> None:
        self.kernels.run(self.symbol, arguments, grid, threads=threads)
