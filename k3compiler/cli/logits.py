"""``k3c logits PKG``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import typer

from k3compiler.errors import K3Error


def logits_command(
    package: Annotated[Path, typer.Argument(help="A package directory.")],
    *,
    weights: Annotated[Path, typer.Option(help="The checkpoint directory.")],
    tokens: Annotated[str, typer.Option(help="Token ids: 1,2,3 or @ids.npy.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write float32 [tokens, vocab] here.")],
    chunks: Annotated[
        str | None,
        typer.Option(
            help="Prefill chunk sizes, such as 20,1,1; the last repeats; 1 runs the decode plan "
            "[default: one prefill]."
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Refuse a package of another dtype than this."),
    ] = None,
) -> None:
    """Write the logits at every position of a prompt."""
    from k3compiler.cli.values import parse_ids, parse_sizes

    ids = parse_ids(tokens, option="--tokens")
    if not ids:
        raise typer.BadParameter("no token ids", param_hint="--tokens")
    sizes = None if chunks is None else parse_sizes(chunks, option="--chunks")

    from k3compiler.package.reader import Package

    opened = Package.open(package)
    built = opened.manifest.dtype
    if dtype is not None and dtype != built:
        raise K3Error(
            "K3-K021",
            where="--dtype",
            expected=f"{built}, which {package} was compiled for",
            found=dtype,
            hint=f"leave --dtype out, or compile again with --dtype {dtype}",
        )
    import numpy as np

    from k3compiler.runtime.engine import Engine

    room = min(opened.manifest.config.max_context, max(len(ids), 2))
    with closing(Engine(opened, weights, max_context=room, max_sequences=1)) as engine:
        values = engine.logits(ids, chunks=sizes)
    with out.open("wb") as file:  # np.save would add a suffix to a path that has none
        np.save(file, values.astype(np.float32, copy=False))
    print(f"{out}: float32 {list(values.shape)}")
