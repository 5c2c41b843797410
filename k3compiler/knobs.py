"""The environment, read here and nowhere else: every knob typed, described and checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from k3compiler.errors import K3Error

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Knob(Generic[T]):
    """One environment variable.

    Attributes:
        name: ``K3C_...``.
        allowed: the values it takes, in words.
        default_text: the default, in words; ``default()`` computes it.
        description: what it changes.
        parse: text to value; ``ValueError`` for text it does not take.
    """

    name: str
    allowed: str
    default_text: str
    description: str
    parse: Callable[[str], T]
    default: Callable[[], T]

    def get(self) -> T:
        """The value in force now (unset and empty mean the default).

        Raises:
            K3Error: ``K3-E001`` naming the variable, where the text is not allowed.
        """
        text = os.environ.get(self.name, "")
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError:
            raise K3Error(
                "K3-E001",
                where=f"environment variable {self.name}",
                expected=self.allowed,
                found=repr(text),
                hint=f"unset it for the default ({self.default_text})",
            ) from None


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


def _choice(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return parse


def _switch(text: str) -> bool:
    return {"0": False, "1": True, "false": False, "true": True}[
        _choice("0", "1", "false", "true")(text)
    ]


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _num_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "k3compiler"


CACHE_DIR = Knob(
    "K3C_CACHE_DIR",
    "a directory that can be written; made where absent",
    "$XDG_CACHE_HOME/k3compiler, or ~/.cache/k3compiler",
    "Where compiled kernels are kept by content, so that a second build is quick.",
    _path,
    _user_cache,
)
NUM_THREADS = Knob(
    "K3C_NUM_THREADS",
    "an integer from 1 to 1024",
    "the CPUs this process may use",
    "Threads of the CPU device's pool.",
    _integer(1, 1024),
    _num_cpus,
)
JOBS = Knob(
    "K3C_JOBS",
    "an integer from 1 to 1024",
    "the CPUs this process may use",
    "Worker processes that compile kernels.",
    _integer(1, 1024),
    _num_cpus,
)
VERIFY = Knob(
    "K3C_VERIFY",
    "off, stages or passes",
    "stages",
    "When the compiler verifies the IR: never, where a level ends, or after every pass.",
    _choice("off", "stages", "passes"),
    lambda: "stages",
)
NVTX = Knob(
    "K3C_NVTX",
    "0 or 1",
    "0",
    "Put an NVTX range with layer and op around every launch on a CUDA device.",
    _switch,
    lambda: False,
)
EARLY_START = Knob(
    "K3C_EARLY_START",
    "0 or 1",
    "1",
    "Start a kernel on a CUDA device while the one before it ends (programmatic dependent launch).",
    _switch,
    lambda: True,
)
BRANCHES = Knob(
    "K3C_BRANCHES",
    "0 or 1",
    "1",
    "Record independent launches of a decode step as parallel branches of its CUDA graph.",
    _switch,
    lambda: True,
)
POISON = Knob(
    "K3C_POISON",
    "0 or 1",
    "0",
    "Fill workspace, outputs and free cache with NaN bits before a step reads them (a debugging aid).",
    _switch,
    lambda: False,
)
DUMP_DIR: Knob[Path | None] = Knob(
    "K3C_DUMP_DIR",
    "a directory that can be written; made where absent",
    "no dumps",
    "Where the compiler writes the IR after every pass, numbered, and where bug reproducers go.",
    _path,
    lambda: None,
)

KNOBS: tuple[Knob[Path] | Knob[int] | Knob[str] | Knob[bool] | Knob[Path | None], ...] = (
    CACHE_DIR,
    NUM_THREADS,
    JOBS,
    VERIFY,
    NVTX,
    EARLY_START,
    BRANCHES,
    POISON,
    DUMP_DIR,
)


def tinygrad_source() -> Path | None:
    """Where ``TINYGRAD_SRC`` says that a checkout of tinygrad lies (for the emulator of AMD code objects)."""
    text = os.environ.get("TINYGRAD_SRC", "")
    return _path(text) if text else None


def set_default(name: str, value: str) -> None:
    """Sets a variable of another tool for this process, unless the user did."""
    os.environ.setdefault(name, value)


def settings() -> dict[str, str]:
    """The knobs that are set in the environment, as their text (for a bug reproducer)."""
    return {knob.name: os.environ[knob.name] for knob in KNOBS if knob.name in os.environ}
