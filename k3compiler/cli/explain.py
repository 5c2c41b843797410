"""``k3c explain CODE``."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated

import typer

from k3compiler.errors import CATALOGUE

FAMILIES = {
    "G": "graph and checkpoint",
    "V": "verifier",
    "P": "pass",
    "T": "target and toolchain",
    "K": "kernel package",
    "R": "runtime",
    "E": "environment",
}


def explain_command(
    code: Annotated[str | None, typer.Argument(help="such as K3-G003; left out: all codes")] = None,
) -> None:
    """Say what an error code means and how to mend it."""
    if code is None:
        for key in sorted(CATALOGUE):
            print(f"{key}  {CATALOGUE[key].title}")
        return
    wanted = code.upper()
    if wanted not in CATALOGUE:
        near = get_close_matches(wanted, CATALOGUE, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise typer.BadParameter(f"no error has the code {code!r}{hint}", param_hint="CODE")
    entry = CATALOGUE[wanted]
    family = FAMILIES[wanted.split("-")[1][0]]
    print(f"{wanted} ({family}): {entry.title}\n\n{entry.explanation}")
