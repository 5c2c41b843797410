"""Generated pages are what the source says now."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3compiler.cli.docs import MLIR_PAGES, PAGES

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", list(PAGES))
def test_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), f"docs/{name} is stale: run make docs"


@pytest.mark.t1
@pytest.mark.parametrize("name", list(MLIR_PAGES))
def test_page_from_the_compiler_is_current(name: str) -> None:
    assert (DOCS / name).read_text() == MLIR_PAGES[name](), f"docs/{name} is stale: run make docs"


@pytest.mark.t1
def test_ops_page_is_current() -> None:
    from k3compiler.dialects.docs import render

    assert (DOCS / "ops.md").read_text() == render(), "docs/ops.md is stale: run make docs"
