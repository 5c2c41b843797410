"""``k3c bench PKG``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def bench_command(
    package: Annotated[Path, typer.Argument(help="A package directory.")],
    *,
    kernel: Annotated[
        list[str] | None, typer.Option(help="Only kernels whose symbol contains this; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Also write the results as JSON to this file."),
    ] = None,
) -> None:
    """Time every kernel against its floor, on this machine's device."""
    from k3compiler.check.bench import bench_package
    from k3compiler.cli.tables import print_records
    from k3compiler.cli.values import check_kernels
    from k3compiler.package.reader import Package

    opened = Package.open(package)
    check_kernels(kernel, opened)
    result = bench_package(opened, kernels=kernel, seed=seed)
    print_records(f"{package} on {result.chip}", result.rows)
    if out is not None:
        out.write_text(json.dumps(result.to_json(), indent=1, sort_keys=True) + "\n")
        print(f"results: {out}")
