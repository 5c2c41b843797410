"""A kernel of a code object, run over a grid in numpy."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from k3compiler.check.emulator.alu import load_alu
from k3compiler.check.emulator.arena import Arena
from k3compiler.check.emulator.code_object import CodeObject
from k3compiler.check.emulator.dispatch import NO_EFFECT, override_of
from k3compiler.check.emulator.fields import NUM_LANES, Array, aligned
from k3compiler.check.emulator.launch import Argument, Descriptor, Grid, argument_segment
from k3compiler.check.emulator.machine import GFX942, GFX950, Machine, Native
from k3compiler.check.emulator.wave import Wave

MAX_LDS_BYTES = 160 << 10
_MOST_INSTRUCTIONS = 20_000_000  # of one wave between two barriers
_NOT_PRELOADED_BYTES = 256  # code before the entry of a kernel with preloaded arguments
_SCALE_PREFIX = b"\xac\xd3"
_RELATIVE = ("S_GETPC", "S_SETPC", "S_SWAPP", "S_CALL_")

Kind = Literal["native", "override", "moved", "nothing", "barrier", "end"]


@dataclass(frozen=True, slots=True)
class WaveOrder:
    """How waves of a workgroup take turns.

    Attributes:
        quantum: instructions a wave runs at a time; 0: until it ends or meets a barrier.
        reverse: the last wave first.
    """

    quantum: int = 0
    reverse: bool = False


ORDERS = (
    WaveOrder(),
    WaveOrder(quantum=7, reverse=True),
)  # a missing barrier shows in one of the two


@dataclass(slots=True)
class Instruction:
    """One decoded instruction, and how often waves ran it."""

    kind: Kind
    run: Any
    size: int
    name: str
    operands: tuple[int, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run executed: wave instructions by name."""

    counts: Counter[str] = field(default_factory=Counter[str])
    num_waves: int = 0

    @property
    def instructions(self) -> int:
        return self.counts.total()


class EmulatedKernel:
    """One kernel of a code object.

    Raises:
        K3Error: ``K3-E005`` the arithmetic emulator is not at hand.
        ValueError: the bytes are no code object of gfx942 or gfx950, or lack the kernel.
    """

    def __init__(self, code: bytes, name: str | None = None) -> None:
        self.code = CodeObject(code)
        if self.code.machine_flag not in (GFX942, GFX950):
            raise ValueError(f"machine flag {self.code.machine_flag:#x} is not of gfx942 or gfx950")
        chosen = name or next(iter(self.code.kernels), "")
        if chosen not in self.code.kernels:
            raise ValueError(f"no kernel {chosen}; the code object has {sorted(self.code.kernels)}")
        self.note = self.code.kernels[chosen]
        self._alu = load_alu()

    def run(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Argument],
        *,
        dynamic_lds_bytes: int = 0,
        order: WaveOrder = ORDERS[0],
        most_programs: int | None = None,
    ) -> RunResult:
        """Launches it; arrays are updated in place, None is a null pointer.

        Args:
            most_programs: run only that many workgroups, spread over the grid.

        Raises:
            MemoryError: a lane reached outside every buffer, or outside LDS.
            NotImplementedError: an instruction that is not emulated.
        """
        sizes = _three(grid), _three(block)
        launch = _Launch(self, sizes, arguments, dynamic_lds_bytes, order)
        with np.errstate(all="ignore"):
            for workgroup in spread(sizes[0], most_programs):
                launch.workgroup(workgroup)
        launch.write_back()
        return launch.result()


def spread(grid: Grid, most: int | None) -> Iterator[Grid]:
    """Workgroups of a grid, all or ``most`` of them: the first, the last, and some between that share no stride."""
    x, y, z = grid
    total = x * y * z
    chosen = range(total)
    if most is not None and total > most:
        rng = np.random.default_rng(total)
        between = rng.choice(np.arange(1, total - 1), most - 2, replace=False)
        chosen = sorted({0, total - 1, *between.tolist()})
    for index in chosen:
        yield index % x, index // x % y, index // (x * y)


def _three(sizes: Sequence[int]) -> Grid:
    x, y, z, *_ = (*sizes, 1, 1)
    return x, y, z


class _Launch:
    """One run: memory with everything in it, and decoded instructions by address."""

    def __init__(
        self,
        kernel: EmulatedKernel,
        sizes: tuple[Grid, Grid],
        arguments: Sequence[Argument],
        dynamic_lds_bytes: int,
        order: WaveOrder,
    ) -> None:
        self.kernel, self.code, self.order = kernel, kernel.code, order
        self.alu = kernel._alu
        self.grid, self.block = sizes
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        span = self.code.image_bytes
        room = span + sum(a.nbytes + 8192 for a in arrays) + kernel.note.argument_bytes + (1 << 18)
        self.arena = Arena(room)
        self.image, self.image_end = self._place_image(span)
        self.placed: list[tuple[Array, int]] = []
        descriptor_at = self.image + self.code.symbols[kernel.note.symbol]
        self.descriptor = Descriptor.of(bytes(self.arena.bytes[descriptor_at : descriptor_at + 64]))
        segment = argument_segment(
            kernel.note, arguments, grid=self.grid, block=self.block, place=self._place
        )
        segment_at = self.arena.allocate(len(segment) + 64)
        self.arena.put(segment_at, segment)
        base = self.arena.base
        self.user = self.descriptor.user_registers(segment, base + segment_at)
        skipped = _NOT_PRELOADED_BYTES if self.descriptor.num_preloaded else 0
        self.start = base + descriptor_at + self.descriptor.entry + skipped
        lds_bytes = max(self.descriptor.lds_bytes, dynamic_lds_bytes)
        if lds_bytes > MAX_LDS_BYTES:
            raise MemoryError(f"{lds_bytes} bytes of LDS, more than {MAX_LDS_BYTES}")
        scratch = self.descriptor.scratch_bytes
        self.machine = Machine(
            self.arena,
            alu=self.alu,
            flag=self.code.machine_flag,
            lds_bytes=lds_bytes,
            scratch_bytes=scratch,
        )
        self.spare = aligned(max(scratch, 4) * NUM_LANES + 64, np.uint8)
        self.program: dict[int, Instruction] = {}
        self.num_waves = 0

    def _place_image(self, span: int) -> tuple[int, int]:
        image = self.arena.allocate(span + 256, 4096)
        for at, data in self.code.loaded():
            self.arena.put(image + at, data)
        for at, target in self.code.relocations():
            self.arena.put(image + at, (self.arena.base + image + target).to_bytes(8, "little"))
        return image, image + span

    def _place(self, array: Array) -> int:
        at = self.arena.allocate(array.nbytes)
        self.placed.append((array, at))
        self.arena.put(at, array.tobytes())
        return self.arena.base + at

    def write_back(self) -> None:
        """Memory into the caller's arrays."""
        for array, at in self.placed:
            data = self.arena.bytes[at : at + array.nbytes].tobytes()
            array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)

    def result(self) -> RunResult:
        counts: Counter[str] = Counter()
        for instruction in self.program.values():
            counts[instruction.name] += instruction.count
        return RunResult(counts, self.num_waves)

    # -- waves -----------------------------------------------------------------------------------
    def workgroup(self, workgroup: Grid) -> None:
        self.machine.clear_lds()
        waves = [
            self._wave(first, workgroup) for first in range(0, int(np.prod(self.block)), NUM_LANES)
        ]
        self.num_waves += len(waves)
        turns = waves[::-1] if self.order.reverse else waves
        while live := [w for w in turns if not w.is_done]:
            if all(w.at_barrier for w in live):
                for wave in live:
                    wave.at_barrier = False
            for wave in live:
                if not wave.at_barrier:
                    self._run(wave, workgroup)

    def _wave(self, first: int, workgroup: Grid) -> Wave:
        x, y, z = self.block
        num_lanes = min(NUM_LANES, x * y * z - first)
        wave = Wave(num_lanes, self.start)
        registers = [*self.user, *self.descriptor.workgroup_registers(workgroup)]
        wave.s[: len(registers)] = registers
        thread = first + np.arange(num_lanes)
        wave.v[0, :num_lanes] = thread // (x * y) << 20 | thread // x % y << 10 | thread % x
        wave.scratch = np.zeros((self.machine.scratch_bytes, NUM_LANES), np.uint8)
        wave.s[259] = self.machine.scratch_bytes
        memory = (wave.s, wave.v, None, self.machine.lds, self.spare, wave.a)
        wave.pointers = [ctypes.c_uint64(0 if m is None else m.ctypes.data) for m in memory]
        return wave

    def _run(self, wave: Wave, workgroup: Grid) -> None:
        """Until the wave ends, meets a barrier, or its turn is over."""
        counter, program, quantum, ran = wave.counter, self.program, self.order.quantum, 0
        lists = wave.argument_lists
        while True:
            at = counter[0]
            known = program.get(at)
            if known is None:
                known = program[at] = self._decode(at)
            ran += 1
            known.count += 1
            match known.kind:
                case "native":
                    given = lists.get(known.operands)
                    if given is None:
                        given = lists[known.operands] = [wave.pointers[i] for i in known.operands]
                    known.run(*given)
                case "override":
                    self._run_override(known, wave, workgroup, at)
                    counter[0] = at + known.size
                case "moved":
                    known.run(wave)
                case "nothing":
                    counter[0] = at + known.size
                case "barrier":
                    counter[0] = at + known.size
                    wave.at_barrier = True
                    break
                case "end":
                    self.machine.wait(wave, 0)
                    wave.is_done = True
                    break
            if quantum and ran >= quantum:
                break
            if ran > _MOST_INSTRUCTIONS:
                raise RuntimeError(f"{self.kernel.note.name}: a wave does not end")
        wave.num_executed += ran

    def _run_override(self, instruction: Instruction, wave: Wave, workgroup: Grid, at: int) -> None:
        try:
            instruction.run(wave)
        except Exception as fault:
            where = f"workgroup {workgroup} pc+{at - self.start:#x} {instruction.name}"
            raise type(fault)(f"{where}: {fault}") from fault

    # -- decoding --------------------------------------------------------------------------------
    def _decode(self, address: int) -> Instruction:
        at = address - self.arena.base
        if not self.image <= at < self.image_end:
            raise RuntimeError(f"program counter {address:#x} is outside the code object")
        data = bytes(self.arena.bytes[at : at + 16])
        decoded = self.alu.decode_inst(data, "cdna")
        # the decoder takes any two words before an unscaled f8f6f4 product for its scale prefix
        is_cut = type(decoded).__name__ == "VOP3PX2" and data[2:4] != _SCALE_PREFIX
        if is_cut:
            decoded = self.alu.decode_inst(data[:8] + bytes(8), "cdna")
        size, kind = decoded.size(), type(decoded).__name__
        name = getattr(decoded.op, "name", str(decoded.op))
        fixed: dict[str, Kind] = {"S_ENDPGM": "end", "S_BARRIER": "barrier"}
        if name in fixed or name in NO_EFFECT:
            return Instruction(fixed.get(name, "nothing"), None, size, name)
        override = override_of(self.machine, name, kind, int.from_bytes(data[:size], "little"))
        if override is not None:
            return Instruction("override", override, size, name)
        if is_cut:
            return self._moved(address, name, data[:size])
        try:
            native = self.machine.native(address)
        except Exception as fault:
            raise NotImplementedError(
                f"pc+{address - self.start:#x}: {name} ({kind}): {fault}"
            ) from fault
        return Instruction("native", native.call, size, name, native.operands)

    def _moved(self, address: int, name: str, data: bytes) -> Instruction:
        """A copy that no product follows; its effect on the program counter is kept."""
        if name.startswith(_RELATIVE):
            raise NotImplementedError(f"{name} before a matrix product")
        words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]
        native = self.machine.patched(*words)
        return Instruction("moved", _moving(native, address), len(data), name)


def _moving(native: Native, address: int) -> Callable[[Wave], None]:
    def run(wave: Wave) -> None:
        wave.counter[0] = native.address
        native.call(*[wave.pointers[i] for i in native.operands])
        wave.counter[0] = address + wave.counter[0] - native.address

    return run


def classes(counts: Counter[str]) -> dict[str, int]:
    """Instructions by class: matrix, valu, salu, lds, global, wait, other."""
    found: Counter[str] = Counter()
    for name, count in counts.items():
        found[_class_of(name)] += count
    return dict(sorted(found.items()))


_CLASSES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("V_MFMA", "V_SMFMA"), "matrix"),
    (("V_CVT",), "convert"),
    (("V_",), "valu"),
    (("DS_",), "lds"),
    (("GLOBAL_", "BUFFER_", "FLAT_", "SCRATCH_"), "memory"),
    (("S_WAITCNT", "S_BARRIER"), "wait"),
    (("S_LOAD", "S_BUFFER_LOAD"), "memory"),
    (("S_",), "salu"),
)


def _class_of(name: str) -> str:
    return next((label for starts, label in _CLASSES if name.startswith(starts)), "other")


def symbols_of(code: bytes) -> Iterator[str]:
    """Names of the kernels in a code object."""
    yield from CodeObject(code).kernels
