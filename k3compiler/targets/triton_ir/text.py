"""Text of an MLIR function, one op a line, each with its location."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def tensor(shape: Sequence[int], element: str) -> str:
    """The type of a tile, or of a scalar where ``shape`` is empty."""
    return f"tensor<{'x'.join(map(str, shape))}x{element}>" if shape else element


class TextBuilder:
    """Collects lines; the location of the moment is put behind every op."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 2
        self._count = 0
        self._aliases: dict[str, str] = {}
        self.location = "loc(unknown)"

    def fresh(self) -> str:
        """A new SSA name."""
        self._count += 1
        return f"%{self._count}"

    def line(self, text: str, location: str | None = None) -> None:
        """One op without results."""
        self._lines.append(f"{'  ' * self._depth}{text} {self.alias(location or self.location)}")

    def label(self, text: str) -> None:
        """A block label, which has no location."""
        self._lines.append("  " * (self._depth - 1) + text)

    def op(self, text: str) -> str:
        """One op with one result; returns its name."""
        name = self.fresh()
        self.line(f"{name} = {text}")
        return name

    def constant(self, value: str, kind: str) -> str:
        """A scalar constant, or a splat where ``kind`` is a tensor type."""
        if kind.startswith("tensor<"):
            return self.op(f"arith.constant dense<{value}> : {kind}")
        return self.op(f"arith.constant {value} : {kind}")

    def i32(self, value: int) -> str:
        return self.constant(str(value), "i32")

    @contextmanager
    def region(self, opening: str, closing: str = "}") -> Iterator[None]:
        """Lines of a region; the location of the op is put behind its end."""
        location = self.location
        self._lines.append("  " * self._depth + opening)
        self._depth += 1
        yield
        self._depth -= 1
        self.line(closing, location)

    def alias(self, location: str) -> str:
        """A location's short name in this text."""
        name = self._aliases.setdefault(location, f"#loc{len(self._aliases)}")
        return f"loc({name})"

    def body(self) -> str:
        return "\n".join(self._lines)

    def aliases(self) -> str:
        return "\n".join(f"{name} = {location}" for location, name in self._aliases.items())
