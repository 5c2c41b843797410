"""Catalogued errors: user mistakes raise :class:`K3Error`, impossible states assert."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One catalogue entry, shown by ``k3c explain CODE``."""

    title: str
    explanation: str


# Families: G graph and checkpoint, V verifier, P pass, T target and toolchain, K package, R runtime, E environment.
CATALOGUE: dict[str, Entry] = {
    "K3-G001": Entry(
        "config key missing or of the wrong kind",
        "config.json lacks a key that the model needs, or its value has another type than the spec says.",
    ),
    "K3-G002": Entry(
        "config key not supported",
        "The key, or this value of it, asks for something that k3compiler does not implement. "
        "Nothing is ignored silently: every key is read or refused by name.",
    ),
    "K3-G003": Entry(
        "config contradicts itself",
        "Two keys cannot both hold, e.g. layer lists that overlap or head counts that do not divide.",
    ),
    "K3-G004": Entry(
        "checkpoint does not match the config",
        "A tensor is missing, extra, or of another shape or dtype than the config asks for.",
    ),
    "K3-G005": Entry(
        "checkpoint file unreadable",
        "A safetensors file, its index, or config.json is missing, truncated or not what it claims to be.",
    ),
}


class K3Error(Exception):
    """A user's mistake, with everything needed to mend it.

    Attributes:
        code: catalogue code, e.g. ``K3-G003``.
        where: file, config key, op or argument that is wrong.
        expected, found: what was wanted there and what was there.
        hint: how to mend it.
    """

    def __init__(self, code: str, *, where: str, expected: str, found: str, hint: str = "") -> None:
        assert code in CATALOGUE, f"error code {code} is not in the catalogue"
        self.code, self.where = code, where
        self.expected, self.found, self.hint = expected, found, hint
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [
            f"{self.code} {CATALOGUE[self.code].title}",
            f"  where:    {self.where}",
            f"  expected: {self.expected}",
            f"  found:    {self.found}",
        ]
        return "\n".join(lines + ([f"  hint:     {self.hint}"] if self.hint else []))

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process borders (compile workers) whole."""
        fields = {n: getattr(self, n) for n in ("where", "expected", "found", "hint")}
        return _rebuild, (self.code, fields)


def _rebuild(code: str, fields: dict[str, str]) -> K3Error:
    return K3Error(code, **fields)
