"""``k3c opt FILE``: the command line of the pass runner in ``cli/opt.py``, free of MLIR imports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def opt_command(
    file: Annotated[Path, typer.Argument(help="An .mlir file, or - for standard input.")],
    *,
    pipeline: Annotated[
        str,
        typer.Option(
            "--pipeline",
            "-p",
            help="Passes with options, such as 'chunk-kda{chunk-tokens=64},fuse-attn-res'.",
        ),
    ] = "",
    print_after: Annotated[
        bool,
        typer.Option("--print-after", help="Print the module after each pass, to standard error."),
    ] = False,
    split_input: Annotated[
        bool,
        typer.Option(
            "--split-input", help="Treat the parts between // ----- lines as modules of their own."
        ),
    ] = False,
    expect_error: Annotated[
        bool,
        typer.Option(
            "--expect-error", help="Print the error of each module and succeed only if it has one."
        ),
    ] = False,
    locations: Annotated[bool, typer.Option("--locations", help="Print locations, too.")] = False,
) -> None:
    """Run named passes on MLIR text and print the result."""
    from k3compiler.cli.extras import require_extra

    require_extra("compile", where="k3c opt")
    from k3compiler.cli.opt import run_opt

    text = run_opt(
        file,
        pipeline=pipeline,
        print_after=print_after,
        split_input=split_input,
        expect_error=expect_error,
    )
    typer.echo(text, nl=False)
