"""``k3c targets``."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def targets_command(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the targets and what is verified on each."""
    from k3compiler.targets.base import TARGETS

    if as_json:
        rows = [
            {
                "name": t.name,
                "kind": t.kind,
                "isa": t.isa,
                "features": sorted(t.features),
                "shared_limit_bytes": t.shared_limit_bytes,
                "verified": t.verified,
            }
            for t in TARGETS.values()
        ]
        print(json.dumps(rows, indent=1))
        return
    from k3compiler.cli.tables import Column, print_table

    print_table(
        "targets",
        (
            Column("target"),
            Column("ISA"),
            Column("shared", right=True),
            Column("features"),
            Column("verified"),
        ),
        [
            (
                t.name,
                t.isa,
                "-" if t.shared_limit_bytes is None else f"{t.shared_limit_bytes // 1024} KB",
                " ".join(sorted(t.features)),
                t.verified,
            )
            for t in TARGETS.values()
        ],
    )
