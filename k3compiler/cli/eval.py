"""``k3c eval PKG``."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_WINDOW = 4096


def eval_command(
    package: Annotated[Path, typer.Argument(help="A package directory.")],
    *,
    weights: Annotated[Path, typer.Option(help="The checkpoint directory.")],
    text: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="A UTF-8 text file to predict.")
    ],
    window: Annotated[
        int | None,
        typer.Option(
            min=2, help="Context tokens per window [default: 4096, or the model's own limit]."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=2, help="Only the text's first tokens [default: all].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score a checkpoint on a text: bits per byte, loss by position, tokens per second."""
    try:
        content = text.read_text(encoding="utf-8")
    except UnicodeDecodeError as fault:
        raise typer.BadParameter(f"not UTF-8: {fault}", param_hint="--text") from None

    from k3compiler.check.eval import evaluate_tokens
    from k3compiler.cli.tables import print_records
    from k3compiler.package.reader import Package
    from k3compiler.runtime.engine import Engine

    opened = Package.open(package)
    limit = opened.manifest.config.max_context
    chosen = min(DEFAULT_WINDOW, limit) if window is None else window
    with closing(Engine(opened, weights, max_context=chosen, max_sequences=1)) as engine:
        tokens = engine.tokenizer.encode(content)[:max_tokens]
        result = evaluate_tokens(engine.logits, tokens, engine.tokenizer.token_bytes, chosen)
    if as_json:
        print(json.dumps(result.to_json(), indent=1))
        return
    print(
        f"{text}: {result.bits_per_byte:.4f} bits per byte, {result.loss:.4f} nats per token\n"
        f"{result.num_tokens} tokens of {result.num_bytes} bytes in {result.num_windows} windows "
        f"of {chosen}, {result.tokens_per_second:.0f} tokens per second"
    )
    print_records("loss by position", result.by_position)
