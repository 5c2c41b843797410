"""``k3c inspect PKG``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from k3compiler.package.reader import Package
    from k3compiler.package.summary import KernelRow, Point
    from k3compiler.package.timeline import Clock


PHASES = ("prefill", "decode")  # in the order of use, not of the manifest's keys
BRIEF_ROWS = 8
BRIEF_HEADS = ("kernel", "launches", "registers", "shared", "spills", "matrix instructions")


def inspect_command(
    package: Annotated[Path, typer.Argument(help="A package directory.")],
    *,
    html: Annotated[
        Path | None, typer.Option(help="Write the report page, with the plans drawn, to this file.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the tables of kernels to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    brief: Annotated[
        bool,
        typer.Option(
            "--brief", help="Only the kernels that move the most bytes in a step, in fewer columns."
        ),
    ] = False,
    times: Annotated[
        Path | None,
        typer.Option(help="What k3c bench --rank wrote: the timeline takes its times."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of the prefill point.")] = 512,
    seqs: Annotated[int, typer.Option(min=1, help="Sequences in the step.")] = 1,
    context: Annotated[int, typer.Option(min=0, help="Cached tokens per sequence.")] = 1024,
) -> None:
    """Show what a package holds: kernels, their resources and floors."""
    from k3compiler.package.reader import Package
    from k3compiler.package.report import render_report
    from k3compiler.package.summary import Point, markdown_table

    opened = Package.open(package)
    opened = replace(opened, plans={phase: opened.plans[phase] for phase in PHASES})
    points: dict[str, Point] = {
        "prefill": Point(tokens=max(tokens, seqs), seqs=seqs, context=context),
        "decode": Point(tokens=seqs, seqs=seqs, context=context),
    }
    if html is not None:
        clock = _clock(opened, times, points["decode"])
        plans = list(opened.plans.values())
        html.write_text(render_report(opened.manifest, plans, points, clock))
    if markdown is not None:
        plans = opened.plans.items()
        tables = [markdown_table(opened.manifest, plan, points[phase]) for phase, plan in plans]
        markdown.write_text("\n".join(tables))
    if as_json:
        print(json.dumps(_as_json(opened, points), indent=1))
        return
    _print_facts(opened)
    for phase, plan in opened.plans.items():
        _print_phase(opened, phase, points[phase], brief=brief)
        _print_other_steps(plan.steps)
    if html is not None:
        print(f"report: {html}")


def _clock(package: Package, times: Path | None, point: Point) -> Clock | None:
    """The chip's rate, and the times that were measured at the decode point.

    Raises:
        K3Error: K3-K003 a file that is not a step benchmark, or not of this point.
    """
    from k3compiler.errors import K3Error
    from k3compiler.package.timeline import Clock
    from k3compiler.targets.base import find_target

    rate = find_target(package.manifest.target.name).bytes_per_s
    found: dict[str, float] = {}
    if times is not None:
        rows = _measured_rows(times)
        here = [r for r in rows if (r["batch"], r["context"]) == (point.seqs, point.context)]
        found = {row["kernel"]: float(row["us_each"]) for row in here}
        if not found:
            raise K3Error(
                "K3-K003",
                where=str(times),
                expected=f"times at --seqs {point.seqs} --context {point.context}",
                found=", ".join(sorted({f"{r['batch']} at {r['context']}" for r in rows}))
                or "none",
            )
    return None if rate is None else Clock(rate, found)


def _measured_rows(path: Path) -> list[dict[str, Any]]:
    from k3compiler.errors import K3Error

    try:
        rows = json.loads(path.read_text())["kernels"]
        if all({"kernel", "us_each", "batch", "context"} <= set(row) for row in rows):
            return rows
        fault = "rows without kernel, us_each, batch and context"
    except (OSError, ValueError, KeyError, TypeError) as error:
        fault = f"{type(error).__name__}: {error}"
    raise K3Error(
        "K3-K003", where=str(path), expected="what k3c bench PKG --rank writes", found=fault
    )


def _print_facts(package: Package) -> None:
    manifest = package.manifest
    target, parallel = manifest.target, manifest.parallel
    print(
        f"{manifest.model['name']}: {manifest.config.num_layers} layers for {target.name} "
        f"({target.isa}), {manifest.dtype}, experts {manifest.moe}, tp {parallel.tp}, ep {parallel.ep}"
    )
    for choice in parallel.choices:
        print(f"  {choice}")
    print(
        f"{len(manifest.kernels)} kernels, {len(manifest.files)} files, built by k3compiler "
        f"{manifest.version} (schema {manifest.schema}, digest {manifest.digest[:12]})"
    )


def _print_phase(package: Package, phase: str, point: Point, *, brief: bool) -> None:
    from k3compiler.cli.tables import Column, print_table
    from k3compiler.package.summary import (
        KERNEL_HEADS,
        format_count,
        kernel_rows,
        plan_symbols,
        row_cells,
        storage_bytes,
    )

    plan = package.plans[phase]
    workspace = storage_bytes(plan, plan_symbols(package.manifest, plan, point))
    rows = kernel_rows(package.manifest, plan, point)
    shown = _largest(rows) if brief else rows
    titles = [title for title, _ in KERNEL_HEADS]
    picked = [i for i, title in enumerate(titles) if not brief or title in BRIEF_HEADS]
    print_table(
        f"{phase}: {len(plan.steps)} steps, workspace {format_count(workspace, 'B')}, at "
        f"{point.tokens} tokens, {point.seqs} sequences, {point.context} of context",
        [Column(titles[i], right=KERNEL_HEADS[i][1]) for i in picked],
        [[row_cells(row)[i] for i in picked] for row in shown],
    )
    if len(shown) < len(rows):
        print(f"  and {len(rows) - len(shown)} more kernels")


def _largest(rows: list[KernelRow]) -> list[KernelRow]:
    """The rows with the most bytes over all their launches, in the order of the plan."""
    by_bytes = sorted(rows, key=lambda row: -(row.floor_bytes or 0) * row.num_launches)
    kept = {row.symbol for row in by_bytes[:BRIEF_ROWS]}
    return [row for row in rows if row.symbol in kept]


def _print_other_steps(steps: tuple[Any, ...]) -> None:
    """Library calls and collectives have no kernel row: count them."""
    from collections import Counter

    from k3compiler.package.manifest import LaunchStep
    from k3compiler.package.summary import step_name

    others = Counter(
        f"{step_name(step)} ({step.op})" for step in steps if not isinstance(step, LaunchStep)
    )
    for name, count in sorted(others.items()):
        print(f"  {name} x{count}")


def _as_json(package: Package, points: dict[str, Point]) -> dict[str, Any]:
    from dataclasses import asdict

    from k3compiler.package.summary import kernel_rows, plan_symbols, storage_bytes

    def rows(phase: str) -> list[KernelRow]:
        return kernel_rows(package.manifest, package.plans[phase], points[phase])

    manifest = package.manifest
    return {
        "model": manifest.model,
        "model_id": manifest.model_id,
        "target": asdict(manifest.target),
        "dtype": manifest.dtype,
        "moe": manifest.moe,
        "parallel": asdict(manifest.parallel),
        "digest": manifest.digest,
        "phases": {
            phase: {
                "point": asdict(points[phase]),
                "num_steps": len(plan.steps),
                "workspace_bytes": storage_bytes(plan, plan_symbols(manifest, plan, points[phase])),
                "kernels": [asdict(row) for row in rows(phase)],
            }
            for phase, plan in package.plans.items()
        },
    }
