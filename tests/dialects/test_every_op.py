"""Every op has a text test, right and wrong, and the page of ops is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3compiler.dialects.docs import render
from k3compiler.ir.registry import DIALECTS, dialect_class

pytestmark = pytest.mark.t1
HERE = Path(__file__).parent
OURS = [name for name in DIALECTS if name != "tile"]


@pytest.mark.parametrize("dialect", OURS)
@pytest.mark.parametrize("file", ["ops.mlir", "invalid.mlir"])
def test_every_op_is_tested_as_text(dialect: str, file: str) -> None:
    text = (HERE / dialect / file).read_text()
    names = [op.OPERATION_NAME for op in dialect_class(dialect).operations]
    assert [name for name in names if f'"{name}"(' not in text] == []


@pytest.mark.parametrize("dialect", OURS)
def test_every_op_says_its_shapes_and_equation(dialect: str) -> None:
    for op in dialect_class(dialect).operations:
        assert "Shapes:" in op.__doc__, op.OPERATION_NAME
        assert op.EQUATION, op.OPERATION_NAME


def test_the_page_of_ops_is_up_to_date() -> None:
    page = HERE.parents[1] / "docs" / "ops.md"
    assert page.read_text() == render(), "run `python -m k3compiler.dialects.docs docs/ops.md`"
