"""``k3c simulate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def simulate_command(
    *,
    trace: Annotated[Path, typer.Option(help="JSON lines, one request each.")],
    config: Annotated[
        Path | None, typer.Option(help="A JSON object; every key has a default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Events as JSON lines, a summary last.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare every output with a cold run.")
    ] = False,
) -> None:
    """Run scheduler and cache on a trace of requests, on a device that computes integers."""
    from k3compiler.runtime.simulate.config import SimulateConfig, load_config
    from k3compiler.runtime.simulate.run import Simulation
    from k3compiler.runtime.simulate.trace import load_trace

    settings = SimulateConfig() if config is None else load_config(config)
    requests = load_trace(trace)
    if out is None:
        summary = Simulation(settings, requests, check=check).run()
    else:
        with out.open("w", encoding="utf-8") as file:

            def write(event: dict[str, Any]) -> None:
                file.write(json.dumps(event) + "\n")

            summary = Simulation(settings, requests, write, check=check).run()
    for name, value in summary.items():
        if name not in ("event", "step"):
            print(f"{name:18} {value}")
    if summary["wrong_outputs"]:
        raise typer.Exit(1)
