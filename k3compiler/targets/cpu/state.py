"""What the lowering of one kernel knows: scalars, buffers on the stack, arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from k3compiler.errors import K3Error
from k3compiler.targets.cpu.formats import BYTES, REGISTER
from k3compiler.targets.cpu.graph import Buffer, Program, Value, refuse
from k3compiler.targets.cpu.plan import Plan
from k3compiler.targets.cpu.ranges import LIMIT, Ranges
from k3compiler.targets.cpu.text import Writer

SECTION = ".text.k3"
STACK_LIMIT_BYTES = 2 * 1024 * 1024


def attributes(level: str) -> str:
    """What pins a function's code to an ISA level, whatever machine compiles it."""
    passthrough = ", ".join([
        '"noinline"', '"nounwind"', '"no-builtins"', f'["target-cpu", "{level}"]', '["target-features", ""]',
        '["tune-cpu", "generic"]', '["prefer-vector-width", "512"]',
    ])  # fmt: skip
    return f'{{dso_local, passthrough = [{passthrough}], section = "{SECTION}"}}'


@dataclass(eq=False, slots=True)
class Slot:
    """A row-major buffer on the stack; i1 tiles are bytes in it."""

    pointer: str
    size_bytes: int
    dtype: str = "f32"

    @property
    def element(self) -> str:
        return memory_element(self.dtype)


def memory_element(dtype: str) -> str:
    """The LLVM type of one element in memory."""
    return "i8" if dtype == "i1" else REGISTER[dtype]


@dataclass(slots=True)
class Valid:
    """Extents (i64) past which a stored or viewed tile is zero; None is the whole tile."""

    rows: str | None = None
    columns: str | None = None


@dataclass(eq=False)
class State:
    """One kernel under lowering."""

    program: Program
    level: str
    plan: Plan = field(init=False)
    ranges: Ranges = field(init=False)
    w: Writer = field(default_factory=Writer)
    scalars: dict[Value, str] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)
    slots: dict[Value, Slot] = field(default_factory=dict)
    valid: dict[Value, Valid] = field(default_factory=dict)
    program_ids: list[str] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = Plan(self.program)
        self.ranges = Ranges(self.program)
        self._free: list[Slot] = []
        self._total_bytes = 0
        self._holders: dict[Slot, int] = {}
        self._scratch: dict[tuple[int, int], Slot] = {}

    @property
    def has_avx512(self) -> bool:
        return self.level == "x86-64-v4"

    # -- functions -----------------------------------------------------------------------------
    def call(
        self, name: str, arguments: Sequence[tuple[str, str]], build: Callable[[list[str]], None]
    ) -> None:
        """Calls a function private to this kernel, written by ``build`` at its first use.

        ``name`` says everything that its code depends on besides ``arguments`` (value, type). What is
        large and needed often (products, transposes) is compiled once this way.
        """
        name = f"{self.program.symbol}.{name}"
        if name not in self.functions:
            outer, self.w = self.w, Writer()
            names = [f"%arg{i}" for i in range(len(arguments))]
            build(names)
            heads = ", ".join(f"{n}: {kind}" for n, (_, kind) in zip(names, arguments, strict=True))
            body, self.w = self.w.text(), outer
            self.functions[name] = (
                f"llvm.func @{name}({heads}) attributes {attributes(self.level)} {{\n{body}\nllvm.return\n}}\n"
            )
        self.w.call(name, arguments)

    # -- buffers -------------------------------------------------------------------------------
    def allocate(self, size: int, dtype: str = "f32") -> Slot:
        """A buffer of ``size`` elements: a free one that fits, or more stack.

        Raises:
            K3Error: K3-T021 past two megabytes.
        """
        wanted = max(size * BYTES[dtype], 64)
        fitting = [s for s in self._free if wanted <= s.size_bytes <= 2 * wanted]
        if fitting:
            slot = min(fitting, key=lambda s: s.size_bytes)
            self._free.remove(slot)
            made = Slot(slot.pointer, slot.size_bytes, dtype)
        else:
            self._total_bytes += wanted
            if self._total_bytes > STACK_LIMIT_BYTES:
                raise K3Error(
                    "K3-T021",
                    where=self.program.symbol,
                    expected=f"at most {STACK_LIMIT_BYTES} bytes of tiles",
                    found=f"more than {self._total_bytes - wanted} bytes, {wanted} of them in one tile",
                    hint="use smaller block sizes in the schedule",
                )
            made = Slot(self.w.alloca(wanted, "i8"), wanted, dtype)
        self._holders[made] = 1
        return made

    def scratch(self, size: int, dtype: str) -> Slot:
        """A small buffer that anyone may use between two neighbouring instructions."""
        key = (size, BYTES[dtype])
        if key not in self._scratch:
            self._scratch[key] = self.allocate(size, dtype)
        return self._scratch[key]

    def share(self, slot: Slot, value: Value) -> None:
        """``value`` lives in a slot that another value holds too."""
        self._holders[slot] += 1
        self.slots[value] = slot

    def release(self, slot: Slot) -> None:
        self._holders[slot] -= 1
        if self._holders[slot] == 0:
            self._free.append(slot)

    def slot_of(self, value: Value) -> Slot | None:
        """The buffer of a value, also through reshapes and expanded dims."""
        while value not in self.slots:
            op = value.op
            if op is None or op.name not in ("tile.reshape", "tile.expand_dims"):
                return None
            value = op.operands[0]
        return self.slots[value]

    def release_after(self, order: int) -> None:
        """Frees the buffers whose last reader ended at ``order`` (what a loop carries is its own affair)."""
        for value in list(self.slots):
            is_carried = value.op is not None and value in value.op.arguments
            if not is_carried and self.plan.last.get(value, order) <= order:
                self.release(self.slots.pop(value))

    # -- scalars -------------------------------------------------------------------------------
    def scalar(self, value: Value) -> str:
        """The name of a scalar's SSA value, in its register type."""
        return self.scalars[value]

    def wide(self, value: Value) -> str:
        """An i32 scalar as i64 (constants fold)."""
        low, high = self.ranges.of(value)
        if low == high and abs(low) < LIMIT:
            return self.w.i64(low)
        return self.w.widen(self.scalars[value])

    def extent(self, extent: int | Value) -> str:
        return self.w.i64(extent) if isinstance(extent, int) else self.wide(extent)

    def strides(self, buffer: Buffer) -> list[str]:
        """Elements between neighbours along each dim (i64)."""
        strides = [self.w.i64(1)]
        for extent in reversed(buffer.extents[1:]):
            strides.insert(0, self.w.mul(self.extent(extent), strides[0]))
        return strides

    def refuse(self, where: str, expected: str, found: str) -> K3Error:
        return refuse(self.program.symbol, where, expected, found)
