"""What is known about the i32 scalars of a tile program: enough to leave bounds checks out.

A scalar is an affine form over *atoms* (SSA values that are not sums) with a range each. Everything is
conservative: unknown means that the check stays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_PROGRAMS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds; None where unknown."""

    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant + sum(coefficient * atom)``."""

    constant: int = 0
    terms: Mapping[Hashable, int] = field(default_factory=dict[Hashable, int])

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + sign * coefficient
        kept = {atom: c for atom, c in terms.items() if c}
        return Affine(self.constant + sign * other.constant, kept)

    def times(self, factor: int) -> Affine:
        if factor == 0:
            return Affine()
        return Affine(self.constant * factor, {a: c * factor for a, c in self.terms.items()})


class Facts:
    """Facts about the scalars seen so far."""

    def __init__(self) -> None:
        self._forms: dict[Any, Affine] = {}
        self._ranges: dict[Hashable, Range] = {}
        self._below: dict[Hashable, Affine] = {}

    # -- entering ----------------------------------------------------------------------------
    def atom(self, value: Any, known: Range = Range(), below: Any | None = None) -> None:
        """A value of its own, in ``known``; ``below`` is a scalar it is always less than."""
        self._forms[value] = Affine(0, {value: 1})
        self._ranges[value] = known
        if below is not None:
            self._below[value] = self.form(below)

    def learn(self, op: Any) -> None:
        """Takes in one op with an i32 scalar result."""
        results = list(op.operation.results)
        if len(results) != 1 or str(results[0].type) != "i32":
            return
        operands = [self.form(v) for v in op.operation.operands if str(v.type) == "i32"]
        made = self._derive(op, operands)
        if isinstance(made, Affine):
            self._forms[results[0]] = made
        else:
            self.atom(results[0], made)

    def _derive(self, op: Any, operands: list[Affine]) -> Affine | Range:
        name = op.operation.name
        if name == "arith.constant":
            return Affine(op.attributes["value"].value)
        if name in ("arith.addi", "arith.subi"):
            return operands[0].plus(operands[1], 1 if name == "arith.addi" else -1)
        if name == "arith.muli":
            for form, other in (operands, operands[::-1]):
                if not other.terms:
                    return form.times(other.constant)
        rule = _RANGE_RULES.get(name)
        return rule(*(self.range(f) for f in operands)) if rule else Range()

    # -- asking ------------------------------------------------------------------------------
    def form(self, value: Any) -> Affine:
        if value not in self._forms:
            self.atom(value)
        return self._forms[value]

    def range(self, form: Affine) -> Range:
        """Bounds of an affine form from those of its atoms."""
        low: int | None = form.constant
        high: int | None = form.constant
        for atom, coefficient in form.terms.items():
            known = self._ranges[atom]
            ends = (known.low, known.high) if coefficient > 0 else (known.high, known.low)
            low = None if low is None or ends[0] is None else low + coefficient * ends[0]
            high = None if high is None or ends[1] is None else high + coefficient * ends[1]
        return Range(low, high)

    def never_negative(self, form: Affine) -> bool:
        low = self.range(form).low
        return low is not None and low >= 0

    def at_most(self, left: Affine, right: Affine) -> bool:
        """Whether ``left <= right`` always."""
        if self.never_negative(right.plus(left, -1)):
            return True
        for atom, coefficient in left.terms.items():  # pid <= T - 1
            if coefficient == 1 and atom in self._below:
                rest = left.plus(Affine(0, {atom: 1}), -1)
                top = self._below[atom].plus(Affine(-1))
                if self.never_negative(right.plus(rest, -1).plus(top, -1)):
                    return True
        return False

    def loop(self, induction: Any, start: Affine, stop: Affine, step: Affine) -> None:
        """Enters a loop's induction variable."""
        first, last = self.range(start), self.range(stop)
        high = None if last.high is None else last.high - 1
        if high is not None and not (start.terms or stop.terms or step.terms):
            steps = max(stop.constant - 1 - start.constant, 0) // step.constant
            high = start.constant + steps * step.constant
        self.atom(induction, Range(first.low, high))


def _pick(choose: Callable[..., int], *values: int | None) -> int | None:
    known = [v for v in values if v is not None]
    return choose(known) if len(known) == len(values) else None


def _some(choose: Callable[..., int], *values: int | None) -> int | None:
    known = [v for v in values if v is not None]
    return choose(known) if known else None


def _div(a: Range, b: Range) -> Range:
    """Operands are not negative (docs/tile.md), so is the quotient."""
    divisor = max(b.low or 1, 1)
    return Range(0, None if a.high is None else max(a.high, 0) // divisor)


def _rem(a: Range, b: Range) -> Range:
    top = None if b.high is None else b.high - 1
    return Range(0, _some(min, top, a.high))


def _and(a: Range, b: Range) -> Range:
    ends = [r.high for r in (a, b) if r.low is not None and r.low >= 0]
    return Range(0, _some(min, *ends)) if ends else Range()


_RANGE_RULES: dict[str, Callable[..., Range]] = {
    "arith.divsi": _div,
    "arith.remsi": _rem,
    "arith.andi": _and,
    "arith.minsi": lambda a, b: Range(_pick(min, a.low, b.low), _some(min, a.high, b.high)),
    "arith.maxsi": lambda a, b: Range(_some(max, a.low, b.low), _pick(max, a.high, b.high)),
    "arith.select": lambda a, b: Range(_pick(min, a.low, b.low), _pick(max, a.high, b.high)),
}
