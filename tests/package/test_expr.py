"""The size language: values, symbols, and refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3compiler.errors import K3Error
from k3compiler.package.expr import (
    bind_extents,
    cdiv,
    compile_exprs,
    evaluate,
    evaluate_with,
    parse,
    symbols_of,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (7, 7),
        ("T*7168*2", 3 * 7168 * 2),
        ("cdiv(T*K, BM) + E", 1 + 5),
        ("T - 1 - 1", 1),
        ("(T + 1) // 2 % 3 * 4", 8),
        ("min(T, max(K, 9))", 3),
        ("-T + 2*-K", -7),
        ("rank*112", 112),
    ],
)
def test_values(text: str | int, value: int) -> None:
    assert evaluate(text, {"T": 3, "K": 2, "BM": 16, "E": 5, "rank": 1}) == value


@pytest.mark.parametrize(
    "text",
    [
        *["", "T +", "(T", "T)", "T T", "1.5", "T/2", "min(T)", "max(T,1,2)", "T**2", "foo(T, 1)"],
        *["__import__('os')", "T.x", "[T]", "-" * 40 + "T", "(" * 40 + "T" + ")" * 40, "Té"],
    ],
)
def test_malformed_is_refused(text: str) -> None:
    with pytest.raises(K3Error, match="K3-K001"):
        parse(text)


def test_unbound_symbol_is_named() -> None:
    with pytest.raises(K3Error, match="K3-K002") as caught:
        evaluate("T*Q", {"T": 1})
    assert "Q" in caught.value.where
    assert symbols_of("T*Q + cdiv(T, 4)") == {"T", "Q"}


def test_python_names_are_only_symbols() -> None:
    """A symbol spelled like a builtin or keyword is just a symbol."""
    assert evaluate("print + lambda", {"print": 2, "lambda": 3}) == 5


def test_values_bring_their_own_operators() -> None:
    seen: list[tuple[float, float]] = []
    found = evaluate_with(
        "2*cdiv(T, 4) + 1", {"T": 2.5}, {"cdiv": lambda a, b: seen.append((a, b)) or 1.5}
    )
    assert (found, seen) == (4.0, [(2.5, 4)])


def test_long_chains_parse() -> None:
    assert evaluate("+".join(["T"] * 500), {"T": 2}) == 1000


def test_many_at_once() -> None:
    run = compile_exprs(["T", 5, "S*2", "cdiv(T, S)"])
    assert run({"T": 7, "S": 2, "unused": 0}) == (7, 5, 4, 4)
    assert compile_exprs([])({}) == ()


_LEAF = st.integers(0, 50).map(str) | st.sampled_from(["T", "S"])
_TREES = st.recursive(
    _LEAF,
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({' '.join(t)})")
        | st.tuples(st.sampled_from(["min", "max", "cdiv"]), inner).map(
            lambda t: f"{t[0]}({t[1]}, 7)"
        )
    ),
    max_leaves=8,
)


@given(_TREES, st.integers(0, 100), st.integers(0, 100))
def test_agrees_with_python(text: str, t: int, s: int) -> None:
    names = {"T": t, "S": s, "min": min, "max": max, "cdiv": cdiv}
    assert evaluate(text, {"T": t, "S": s}) == eval(text, {"__builtins__": {}}, names)


def test_extents_bind_themselves_and_their_symbol() -> None:
    assert bind_extents([("NS+1", 4), ("T", 7)]) == {"NS": 3, "NS+1": 4, "T": 7}
