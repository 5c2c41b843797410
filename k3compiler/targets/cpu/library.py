"""The CPU library of a package: all kernels of a plan, for one ISA level, in one shared object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from k3compiler.errors import K3Error
from k3compiler.ir.bindings import ir
from k3compiler.ir.context import parse_module
from k3compiler.targets.cpu import elf
from k3compiler.targets.cpu.graph import read_program
from k3compiler.targets.cpu.lower import lower
from k3compiler.targets.cpu.objects import to_object
from k3compiler.targets.cpu.runner import RUNNER_SYMBOL, runner_text
from k3compiler.targets.cpu.state import SECTION

Level = Literal["x86-64-v3", "x86-64-v4"]
LEVELS: tuple[Level, ...] = get_args(Level)


def lowered_text(program: ir.Module | str, level: Level) -> tuple[str, str]:
    """The symbol of a tile program, and the MLIR text that its object is made from."""
    module = parse_module(program) if isinstance(program, str) else program
    read = read_program(module)
    return read.symbol, lower(read, _checked(level))


def compile_object(program: ir.Module | str, level: Level) -> bytes:
    """One tile program (a module, or its text) as an ELF object; cacheable by text and level.

    Raises:
        K3Error: K3-T020, K3-T021 or K3-T022, naming the kernel.
    """
    symbol, text = lowered_text(program, level)
    return to_object(text, where=symbol)


def compile_runner(level: Level) -> bytes:
    """The object of the plan runner, ``k3_run``."""
    return to_object(runner_text(_checked(level)), where=RUNNER_SYMBOL)


def link(objects: Mapping[str, bytes]) -> bytes:
    """One shared object from objects by symbol (each exports its symbol); the same bytes on any machine.

    Raises:
        K3Error: K3-T022 where an object refers to something outside.
    """
    return elf.link(objects, list(objects), code_section=SECTION)


def compile_library(programs: Sequence[ir.Module | str], level: Level) -> bytes:
    """All programs and the runner as one shared object (ELF, loaded with dlopen)."""
    objects: dict[str, bytes] = {RUNNER_SYMBOL: compile_runner(level)}
    for program in programs:
        symbol, text = lowered_text(program, level)
        if symbol in objects:
            raise K3Error(
                "K3-T022",
                where=symbol,
                expected="each kernel symbol once",
                found="two programs of that name",
            )
        objects[symbol] = to_object(text, where=symbol)
    return link(objects)


def _checked(level: str) -> Level:
    for known in LEVELS:
        if level == known:
            return known
    raise K3Error("K3-T020", where="level", expected=" or ".join(LEVELS), found=repr(level))
