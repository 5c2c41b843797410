"""What a pass is: a frozen value with options, a name, and the levels it goes between."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_type_hints

from k3compiler.errors import K3Error


@dataclass(frozen=True, slots=True)
class Pass:
    """A change of a module, in place. Its dataclass fields are its options.

    The module verifies before and after. ``from_level`` and ``to_level`` are those of the ops that a
    pass reads and writes (design section 2); a pipeline never goes back.
    """

    name: ClassVar[str]
    from_level: ClassVar[int] = 1
    to_level: ClassVar[int] = 2

    def run(self, module: Any) -> None:
        """Changes the module; raises K3Error where the graph is not what the pass needs."""
        raise NotImplementedError

    def __str__(self) -> str:
        """As it is written in a pipeline, ``name{option=value}``."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        shown = ",".join(f"{k.replace('_', '-')}={_shown(v)}" for k, v in given.items())
        return f"{self.name}{{{shown}}}" if shown else self.name


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def with_options(pass_class: type[Pass], text: dict[str, str]) -> Pass:
    """A pass from its options as text.

    Raises:
        K3Error: K3-P002 for an unknown option or a value of the wrong kind.
    """
    kinds = get_type_hints(pass_class)
    known = [f.name for f in fields(pass_class)]
    values: dict[str, Any] = {}
    for key, raw in text.items():
        option = key.replace("-", "_")
        if option not in known:
            allowed = ", ".join(name.replace("_", "-") for name in known) or "no option"
            raise K3Error(
                "K3-P002", where=f"{pass_class.name}{{{key}}}", expected=allowed, found=key
            )
        values[option] = _parsed(raw, kinds[option], where=f"{pass_class.name}{{{key}}}")
    return pass_class(**values)


def _parsed(raw: str, kind: Any, *, where: str) -> Any:
    if kind is str:
        return raw
    choices = getattr(kind, "__args__", ())
    words = [c for c in choices if isinstance(c, str)]
    if words:
        if raw in words:
            return raw
        raise K3Error("K3-P002", where=where, expected=" or ".join(words), found=raw)
    if raw == "none" and type(None) in choices:
        return None
    try:
        return int(raw)
    except ValueError:
        raise K3Error("K3-P002", where=where, expected="a whole number", found=raw) from None
