"""``k3c bench PKG``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from k3compiler.check.step import StepBench


def bench_command(
    package: Annotated[Path, typer.Argument(help="A package directory.")],
    *,
    kernel: Annotated[
        list[str] | None, typer.Option(help="Only kernels whose symbol contains this; repeatable.")
    ] = None,
    random_weights: Annotated[
        bool,
        typer.Option(
            "--random-weights",
            help="Time whole decode steps of one rank at full depth, on weights and caches made on the device.",
        ),
    ] = False,
    rank: Annotated[int, typer.Option(min=0, help="Of whole steps: whose share of them.")] = 0,
    batch: Annotated[str, typer.Option(help="Of whole steps: sequences, e.g. 1,8,32.")] = "1",
    context: Annotated[
        str, typer.Option(help="Of whole steps: cached tokens of each sequence, e.g. 4096.")
    ] = "4096",
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Also write the results as JSON to this file."),
    ] = None,
) -> None:
    """Time every kernel against its floor, or whole decode steps, on this machine's device."""
    from k3compiler.cli.tables import print_records
    from k3compiler.cli.values import check_kernels, parse_sizes
    from k3compiler.package.reader import Package

    opened = Package.open(package)
    result: Any
    if random_weights:
        from k3compiler.check.step import StepPoint, bench_steps

        if kernel:
            raise typer.BadParameter("whole steps run every kernel", param_hint="--kernel")
        batches = parse_sizes(batch, option="--batch")
        contexts = parse_sizes(context, option="--context")
        points = [StepPoint(b, c) for c in contexts for b in batches]
        result = bench_steps(opened, points, rank=rank, seed=seed, progress=print)
        print_steps(str(package), result)
    else:
        from k3compiler.check.bench import bench_package

        check_kernels(kernel, opened)
        result = bench_package(opened, kernels=kernel, seed=seed)
        print_records(f"{package} on {result.chip}", result.rows)
    if out is not None:
        out.write_text(json.dumps(result.to_json(), indent=1, sort_keys=True) + "\n")
        print(f"results: {out}")


def print_steps(name: str, bench: StepBench) -> None:
    """The tables of whole steps."""
    from k3compiler.cli.tables import print_records

    rate = f"{bench.rates.bytes_per_s / 1e9:.0f} GB/s"
    print_records(f"{name} on {bench.chip}, copies at {rate}", bench.steps)
    print_records("time by op", bench.ops)
    print_records("time by kernel", bench.kernels)
    print_records("launches a layer", bench.layers)
    if bench.choices:
        print_records(
            "cut over the ranks, or whole: one token's saving in a layer, and cost", bench.choices
        )
    if bench.collectives:
        print_records("left out: what this rank would give to collectives", bench.collectives)
