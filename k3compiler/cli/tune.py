"""``k3c tune``: candidates of schedules built anywhere, measured where the device is, put into the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from k3compiler.errors import K3Error

if TYPE_CHECKING:
    from k3compiler.package.manifest import Manifest
    from k3compiler.package.tuning import TuneShape
    from k3compiler.targets.tuning.prepare import Source


def tune_command(
    source: Annotated[
        str,
        typer.Argument(
            help="--prepare: a package or a model; --measure: a bundle; --apply: what --measure wrote."
        ),
    ],
    *,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Build the candidates into a bundle; needs no GPU.")
    ] = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Check and time a bundle's candidates on this device."),
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Put what won into the schedule table.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The bundle, the JSON of --measure, or the table [default: the target's own].",
        ),
    ] = None,
    phase: Annotated[
        Literal["decode", "prefill"], typer.Option(help="--prepare: kernels of this plan.")
    ] = "decode",
    kernel: Annotated[
        list[str] | None,
        typer.Option(help="--prepare: only families whose name contains this; repeatable."),
    ] = None,
    batch: Annotated[
        str, typer.Option(help="--prepare: sequences (prefill: tokens) to time at.")
    ] = "1,8,16,64",
    context: Annotated[int, typer.Option(min=0, help="--prepare: cached tokens.")] = 4096,
    keep: Annotated[int, typer.Option(min=2, help="--prepare: candidates of a kernel.")] = 6,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="--measure: begin no kernel after so many.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="--measure: of the random inputs.")] = 0,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="--prepare a model: the chip.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="--prepare a model.")] = 1,
    ep: Annotated[int | None, typer.Option(min=1, help="--prepare a model.")] = None,
    moe: Annotated[Literal["a16w4", "a8w4"], typer.Option(help="--prepare a model.")] = "a16w4",
) -> None:
    """Tune schedules: --prepare a bundle of candidates, --measure it on the device, --apply what won."""
    if sum((prepare, measure, apply)) != 1:
        raise typer.BadParameter("one of --prepare, --measure and --apply")
    if apply:
        _apply(Path(source), out)
        return
    if out is None:
        raise typer.BadParameter("where to write", param_hint="--out")
    if measure:
        _measure(Path(source), out, seconds, seed)
        return
    from k3compiler.cli.extras import require_extra
    from k3compiler.cli.values import parse_sizes

    require_extra("compile", where="k3c tune --prepare")
    sizes = parse_sizes(batch, option="--batch")
    template, sources = _sources(source, phase, target, tp, ep, moe)
    _prepare(template, sources, out, phase, kernel, sizes, context, keep)


def _sources(
    source: str,
    phase: Literal["decode", "prefill"],
    target: str | None,
    tp: int,
    ep: int | None,
    moe: Literal["a16w4", "a8w4"],
) -> tuple[Manifest, list[Source]]:
    if (Path(source) / "manifest.json").is_file():
        from k3compiler.package.reader import Package
        from k3compiler.targets.tuning.prepare import sources_of

        package = Package.open(source)
        return package.manifest, sources_of(package, phase)
    if target is None:
        raise typer.BadParameter("a model needs one", param_hint="--target")
    from k3compiler.driver import tuning_sources

    return tuning_sources(source, target=target, phase=phase, tp=tp, ep=ep, moe=moe)


def _prepare(
    template: Manifest,
    sources: list[Source],
    out: Path,
    phase: str,
    families: list[str] | None,
    sizes: list[int],
    context: int,
    keep: int,
) -> None:
    from k3compiler.targets.tuning.prepare import decode_buckets, prefill_buckets
    from k3compiler.targets.tuning.prepare import prepare as prepare_bundle

    chosen = [s for s in sources if families is None or any(f in s.family for f in families)]
    if not chosen:
        raise K3Error(
            "K3-E004",
            where="--kernel",
            expected=f"a part of one of {', '.join(sorted({s.family for s in sources}))}",
            found=", ".join(families or []) or f"no kernels in the {phase} plan",
        )
    buckets = decode_buckets(sizes, context) if phase == "decode" else prefill_buckets(sizes)
    path, made = prepare_bundle(chosen, template, {phase: buckets}, keep=keep, out=out)
    for shape in made.shapes:
        print(_expected(shape))
    count = sum(len(s.candidates) for s in made.shapes)
    print(f"{path}: {count} candidates of {len(made.shapes)} kernels for {template.target.name}")


def _expected(shape: TuneShape) -> str:
    """The candidate that the cost model puts first, against the schedule in force."""
    us = {c.symbol: sum(c.predicted_us.values()) for c in shape.candidates}
    best = min(shape.candidates, key=lambda c: us[c.symbol])
    share = us[best.symbol] / us[shape.present] if us[shape.present] else 1.0
    return f"{shape.present} ({shape.launches} launches): by the model {share:.2f} with {best.set}"


def _measure(bundle: Path, out: Path, seconds: float | None, seed: int) -> None:
    from k3compiler.check.tune import measure_bundle
    from k3compiler.package.reader import Package
    from k3compiler.runtime.device.select import open_device

    opened = Package.open(bundle)
    device = open_device(None, opened.manifest.target)
    result = measure_bundle(opened, device=device, seconds=seconds, seed=seed)
    out.write_bytes(result.to_bytes())
    timings = [t for shape in result.shapes for t in shape.timings]
    failed = sum(not t.passed for t in timings)
    print(f"{out}: {len(timings)} candidates of {len(result.shapes)} kernels, {failed} refused")
    print(f"rank agreement of the cost model: {result.agreement}")
    if result.unreached:
        print(f"not reached in {seconds} s: {', '.join(result.unreached)}")


def _apply(measured: Path, out: Path | None) -> None:
    from k3compiler.package.tuning import read_measurement
    from k3compiler.targets.tuning.apply import apply_measurement, table_path

    measurement = read_measurement(measured)
    path = out or table_path(measurement)
    lines = apply_measurement(measurement, path)
    for entry in lines:
        print(f"{entry['family']} {entry['when']}: {entry['set']}, {entry['note']}")
    print(f"{path}: {len(lines)} of {len(measurement.shapes)} kernels have a better schedule")
