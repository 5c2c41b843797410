"""Pages made from the tables: ``python -m k3compiler.cli.docs DOCS`` writes all but ops.md."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING

from k3compiler.cli.explain import FAMILIES
from k3compiler.errors import CATALOGUE
from k3compiler.knobs import KNOBS
from k3compiler.targets.base import LINK_SOURCE, TARGETS

if TYPE_CHECKING:
    from k3compiler.passes.base import Pass

MADE_BY = "Made by `make docs` from the source; do not edit."


def knobs_page() -> str:
    """docs/knobs.md."""
    rows = [(f"`{k.name}`", k.description, k.allowed, k.default_text) for k in KNOBS]
    return _page(
        "Environment variables",
        f"{MADE_BY} A value that is not allowed is refused by name (`K3-E001`); an empty one counts as unset.",
        _table(("variable", "what it does", "allowed", "default"), rows),
    )


def errors_page() -> str:
    """docs/errors.md."""
    parts = [f"{MADE_BY} `k3c explain CODE` prints one. Every code makes `k3c` exit with 1."]
    for family, meaning in FAMILIES.items():
        codes = sorted(code for code in CATALOGUE if code.startswith(f"K3-{family}"))
        if not codes:
            continue
        rows = [(f"`{c}`", CATALOGUE[c].title, CATALOGUE[c].explanation) for c in codes]
        title = meaning[0].upper() + meaning[1:]
        parts.append(f"## {title}\n\n" + _table(("code", "what", "explanation"), rows))
    return _page("Errors", *parts)


def targets_page() -> str:
    """docs/targets.md."""
    rows = [
        (
            f"`{t.name}`",
            f"`{t.isa}`",
            "-" if t.shared_limit_bytes is None else f"{t.shared_limit_bytes // 1024} KB",
            str(t.warp_size),
            "-" if t.bytes_per_s is None else f"{t.bytes_per_s / 1e12:g} TB/s",
            "-" if "bf16" not in t.flops else f"{t.flops['bf16'] / 1e12:g}",
            " ".join(sorted(t.features)),
            t.verified,
        )
        for t in TARGETS.values()
    ]
    heads = ("target", "ISA", "shared", "warp", "memory", "bf16 TFLOP/s", "features", "verified")
    sources = "\n".join(f"- `{t.name}`: {t.source}" for t in TARGETS.values())
    return _page(
        "Targets",
        f"{MADE_BY} Rates are the makers' peaks (dense), not measurements; `k3c bench` measures its own.",
        _table(heads, rows),
        f"## Sources\n\n{sources}",
        "## Links\n\nWhat a collective of a few KB is taken to cost where the build chooses which matrices to cut over "
        f"the ranks (`passes/sharding.py`); {LINK_SOURCE}. Assumptions, not measurements.\n\n{_links()}",
    )


def _links() -> str:
    rows = [
        (
            f"`{t.name}`",
            "any" if link.ranks is None else f"{link.ranks}",
            f"{link.latency_s * 1e6:g} us",
            f"{link.bytes_per_s / 1e9:g} GB/s",
        )
        for t in TARGETS.values()
        for link in t.links
    ]
    return _table(("target", "ranks, at most", "latency", "rate"), rows)


def cli_page() -> str:
    """docs/cli.md: every subcommand's help, at 100 columns."""
    from typer.testing import CliRunner

    from k3compiler.cli.main import COMMANDS, app

    def help_of(*path: str) -> str:
        shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=100, prog_name="k3c")
        assert shown.exit_code == 0, shown.output
        body = "\n".join(line.rstrip() for line in shown.output.strip().splitlines())
        return f"```text\n{body}\n```"

    parts = [f"## k3c {name}\n\n{help_of(name)}" for name in COMMANDS]
    return _page("Command line", MADE_BY, help_of(), *parts)


def passes_page() -> str:
    """docs/passes.md; needs MLIR."""
    from k3compiler.passes.pipelines import DECODE, PREFILL
    from k3compiler.passes.registry import PASSES, pass_class

    parts = [
        f"{MADE_BY} `k3c opt FILE --pipeline 'a,b{{option=value}}'` runs them on text.",
        "## Pipelines\n\n"
        + "\n\n".join(
            f"{phase}:\n\n```text\n" + ",\n".join(map(str, passes)) + "\n```"
            for phase, passes in (("Prefill", PREFILL), ("Decode", DECODE))
        ),
        "## Passes",
    ]
    return _page("Passes", *parts, *(_pass_section(pass_class(name)) for name in PASSES))


def _pass_section(pass_class: type[Pass]) -> str:
    options = ", ".join(
        f"`{f.name.replace('_', '-')}` ({'required' if f.default is MISSING else f.default})"
        for f in fields(pass_class)
    )
    return (
        f"### `{pass_class.name}`\n\n{inspect.cleandoc(pass_class.__doc__ or '')}\n\n"
        f"- levels: {pass_class.from_level} to {pass_class.to_level}\n"
        f"- options: {options or '–'}"
    )


PAGES: Mapping[str, Callable[[], str]] = {
    "knobs.md": knobs_page,
    "errors.md": errors_page,
    "targets.md": targets_page,
    "cli.md": cli_page,
}

MLIR_PAGES: Mapping[str, Callable[[], str]] = {"passes.md": passes_page}


def _page(title: str, *parts: str) -> str:
    return f"# {title}\n\n" + "\n\n".join(parts) + "\n"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


if __name__ == "__main__":
    for file_name, page in {**PAGES, **MLIR_PAGES}.items():
        (Path(sys.argv[1]) / file_name).write_text(page())
