"""``k3c compile``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

Progress = Callable[[str, int, int], None]


def compile_command(
    model: Annotated[
        str,
        typer.Argument(
            help="A checkpoint directory, a config.json, or a preset name such as kimi-k3."
        ),
    ],
    *,
    target: Annotated[str, typer.Option("--target", "-t", help="A chip; k3c targets lists them.")],
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel degree.")] = 1,
    ep: Annotated[
        int | None,
        typer.Option(min=1, help="Expert parallel degree [default: --tp]; 1 slices each expert."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Activations [default: float32 on cpu, bfloat16 on GPUs]."),
    ] = None,
    moe: Annotated[
        Literal["a16w4", "a8w4"], typer.Option(help="Operand formats of packed experts.")
    ] = "a16w4",
    draft: Annotated[
        Path | None,
        typer.Option(help="A DSpark draft's directory, to run the package with that draft."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Package directory [default: MODEL-TARGET here]."),
    ] = None,
) -> None:
    """Compile a model into a kernel package."""
    from k3compiler.cli.extras import require_extra
    from k3compiler.targets.base import find_target

    spec = find_target(target)
    require_extra("compile", where="k3c compile")
    from k3compiler.driver import compile_model

    folder = _default_out(model, spec.name, tp) if out is None else out
    started = time.monotonic()
    with _progress_bar() as progress:
        package = compile_model(
            model,
            target=spec.name,
            tp=tp,
            ep=ep,
            dtype=dtype,
            moe=moe,
            draft=draft,
            out=folder,
            progress=progress,
        )
    seconds = time.monotonic() - started
    print(f"{package}: built for {spec.name} ({spec.isa}) in {seconds:.1f} s")
    print(f"k3c inspect {package} shows what is in it")


def _default_out(model: str, target: str, tp: int) -> Path:
    """``k3-nano-gb300`` or ``kimi-k3-gb300-tp8``, in the current directory."""
    path = Path(model).resolve()
    stem = path.parent.name if path.name == "config.json" else path.name.removesuffix(".json")
    parallel = f"-tp{tp}" if tp > 1 else ""
    return Path(f"{stem or 'model'}-{target}{parallel}")


@contextmanager
def _progress_bar() -> Generator[Progress | None]:
    """A bar per stage on a terminal, one line per finished stage elsewhere (standard error)."""
    if not sys.stderr.isatty():
        yield _print_finished
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    bar = RichProgress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with bar:
        stages: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bar.add_task(stage, total=total)
            bar.update(stages[stage], completed=done, total=total)

        yield show


def _print_finished(stage: str, done: int, total: int) -> None:
    if done == total:
        print(f"k3c: {stage}: {total} done", file=sys.stderr)
