"""``k3c generate PKG``."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from k3compiler.runtime.engine import Engine
    from k3compiler.runtime.sampling import SamplingParams

Prompt = str | list[int]


def generate_command(
    package: Annotated[Path, typer.Argument(help="A package directory.")],
    *,
    weights: Annotated[Path, typer.Option(help="The checkpoint directory.")],
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="Text; repeat it for a batch.")
    ] = None,
    token_ids: Annotated[
        list[str] | None,
        typer.Option(help="A prompt as token ids, 1,2,3 or @ids.npy; repeatable."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens per prompt, at most.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="Keep the k likeliest; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus mass.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling.")] = 0,
    stop_id: Annotated[
        list[int] | None, typer.Option(help="Stop at this token id, too; repeatable.")
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(min=2, help="Prompt and new tokens, at most [default: 4096 or the model's]."),
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option(
            help="A DSpark draft's directory: fewer steps, the same output. Compile with it, too."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda or cuda:N [default: what the package is for]."),
    ] = None,
    print_ids: Annotated[
        bool,
        typer.Option(
            "--ids", help="Print token ids, not text (also where the weights have no tokenizer)."
        ),
    ] = False,
) -> None:
    """Generate from one prompt (streamed) or several."""
    from k3compiler.cli.values import parse_ids

    prompts: list[Prompt] = [*(prompt or [])]
    prompts += [parse_ids(text, option="--token-ids") for text in token_ids or []]
    if not prompts:
        raise typer.BadParameter("give --prompt or --token-ids", param_hint="--prompt")

    from k3compiler.package.reader import Package
    from k3compiler.runtime.engine import Engine
    from k3compiler.runtime.sampling import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop_ids=tuple(stop_id or ()),
    )
    engine = Engine(
        Package.open(package),
        weights,
        draft=draft,
        device=device,
        max_context=max_context,
        max_sequences=min(len(prompts), 8),
        prefix_cache=len(prompts) > 1,
    )
    print_ids = print_ids or not engine.has_tokenizer
    with closing(engine):
        if len(prompts) == 1:
            _stream(engine, prompts[0], params, print_ids)
        else:
            _batch(engine, prompts, params, print_ids)


def _stream(engine: Engine, prompt: Prompt, params: SamplingParams, print_ids: bool) -> None:
    for event in engine.stream([prompt], params):
        token = "" if event.token is None else f"{event.token} "
        sys.stdout.write(token if print_ids else event.text)
        sys.stdout.flush()
    print()


def _batch(engine: Engine, prompts: list[Prompt], params: SamplingParams, print_ids: bool) -> None:
    for number, done in enumerate(engine.generate(prompts, params)):
        ids = " ".join(map(str, done.tokens))
        print(f"[{number}] {ids if print_ids else done.text}")
