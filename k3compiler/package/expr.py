"""The size language of the package: integers, symbols, ``+ - * // % min max cdiv``.

Division and remainder are Python's (floor); sizes are never negative in practice. An expression is
parsed by the small grammar below and only then turned into Python, so package text never reaches
``eval`` as it stands.

    sum   = prod (("+" | "-") prod)*
    prod  = unary (("*" | "//" | "%") unary)*
    unary = "-" unary | integer | symbol | call | "(" sum ")"
    call  = ("min" | "max" | "cdiv") "(" sum "," sum ")"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from k3compiler.errors import K3Error

Expr = int | str
"""A size as the package writes it."""

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(//|[-+*%(),]))", re.ASCII)
_FUNCTIONS = frozenset({"min", "max", "cdiv"})
_MAX_DEPTH = 32


def bind_extents(extents: Iterable[tuple[str, int]]) -> dict[str, int]:
    """What an array's extents (``N`` or ``N+1``) and their sizes say: each by itself, and N."""
    known: dict[str, int] = {}
    for extent, size in extents:
        symbol, plus, _ = extent.partition("+1")
        known |= {symbol: size - bool(plus), extent: size}
    return known


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class Parsed:
    """An expression that was understood: its Python code, and the ``symbols`` in it."""

    python: str
    symbols: frozenset[str]


@lru_cache(maxsize=4096)
def parse(expr: Expr) -> Parsed:
    """Parse one expression.

    Raises:
        K3Error: K3-K001, the text is not in the language.
    """
    if isinstance(expr, int):
        return Parsed(str(int(expr)), frozenset())
    parser = _Parser(expr)
    code = parser.sum(0)
    if parser.peek() is not None:
        raise parser.error("an operator or the end")
    return Parsed(code, frozenset(parser.symbols))


def compile_exprs(exprs: Sequence[Expr]) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
    """One closure that evaluates all ``exprs`` on a table of symbols."""
    parsed = [parse(e) for e in exprs]
    names = sorted(frozenset[str]().union(*(p.symbols for p in parsed)))
    params = ", ".join(f"s_{n}" for n in names)
    body = ", ".join(p.python for p in parsed) + ("," if parsed else "")
    scope: dict[str, object] = {"cdiv": cdiv, "min": min, "max": max, "__builtins__": {}}
    function = eval(f"lambda {params}: ({body})", scope)

    def run(symbols: Mapping[str, int]) -> tuple[int, ...]:
        try:
            values = [symbols[n] for n in names]
        except KeyError as missing:
            raise _unbound(str(missing.args[0]), symbols) from None
        return function(*values)

    return run


def compile_expr(expr: Expr) -> Callable[[Mapping[str, int]], int]:
    """A closure that evaluates ``expr`` on a table of symbols."""
    run = compile_exprs([expr])
    return lambda symbols: run(symbols)[0]


@lru_cache(maxsize=4096)
def _cached(expr: Expr) -> Callable[[Mapping[str, int]], int]:
    return compile_expr(expr)


def evaluate(expr: Expr, symbols: Mapping[str, int]) -> int:
    """The value of ``expr``.

    Raises:
        K3Error: K3-K001 bad syntax, K3-K002 a symbol that ``symbols`` does not bind.
    """
    return expr if isinstance(expr, int) else _cached(expr)(symbols)


def evaluate_with(
    expr: Expr, values: Mapping[str, Any], functions: Mapping[str, Callable[[Any, Any], Any]]
) -> Any:
    """``expr`` over values that have operators of their own; ``functions`` are what it calls by name."""
    parsed = parse(expr)
    scope = {**functions, **{f"s_{n}": values[n] for n in parsed.symbols}, "__builtins__": {}}
    return eval(parsed.python, scope)


def symbols_of(expr: Expr) -> frozenset[str]:
    """Names of the symbols in ``expr``."""
    return parse(expr).symbols


def _unbound(name: str, symbols: Mapping[str, int]) -> K3Error:
    known = ", ".join(sorted(symbols)) or "none"
    return K3Error(
        "K3-K002", where=f"symbol {name}", expected=f"one of: {known}", found=f"{name}, unbound"
    )


class _Parser:
    """Recursive descent over the tokens of one expression; emits fully parenthesised Python."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.symbols: set[str] = set()
        self.tokens = self._tokenize(text)

    def _tokenize(self, text: str) -> list[str]:
        tokens: list[str] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.error("+ - * // % ( ) , a name or a number", text[position:])
            tokens.append(match.group(1) or match.group(2) or match.group(3))
            position = match.end()
        return tokens

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, want: str | None = None) -> str:
        token = self.peek()
        if token is None or (want is not None and token != want):
            raise self.error(want or "a value")
        self.at += 1
        return token

    def error(self, expected: str, found: str | None = None) -> K3Error:
        rest = found if found is not None else (self.peek() or "the end")
        return K3Error(
            "K3-K001", where=f"expression {self.text!r}", expected=expected, found=repr(rest)
        )

    def sum(self, depth: int) -> str:
        if depth > _MAX_DEPTH:
            raise self.error(f"at most {_MAX_DEPTH} nested parentheses")
        return self._chain(
            ("+", "-"), lambda: self._chain(("*", "//", "%"), lambda: self.unary(depth))
        )

    def _chain(self, operators: tuple[str, ...], operand: Callable[[], str]) -> str:
        code = operand()
        if self.peek() not in operators:
            return code
        while self.peek() in operators:
            code += self.take() + operand()
        return f"({code})"

    def unary(self, depth: int) -> str:
        token = self.take()
        if token == "-":
            if depth > _MAX_DEPTH:
                raise self.error(f"at most {_MAX_DEPTH} nested signs")
            return f"(-{self.unary(depth + 1)})"
        if token == "(":
            code = self.sum(depth + 1)
            self.take(")")
            return code
        if token.isdigit():
            return str(int(token))
        if token in _FUNCTIONS:
            return self._call(token, depth)
        if not (token[0].isalpha() or token[0] == "_"):
            self.at -= 1
            raise self.error("a value")
        self.symbols.add(token)
        return f"s_{token}"

    def _call(self, name: str, depth: int) -> str:
        self.take("(")
        first = self.sum(depth + 1)
        self.take(",")
        second = self.sum(depth + 1)
        self.take(")")
        return f"{name}({first},{second})"
