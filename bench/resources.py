"""Prints the table of docs/gpu-kernels.md: what the kernels of packages use: bench/resources.py PKG [PKG...].

A cell: kernels; registers a thread, shared memory in KB, spilled bytes, matrix instructions; the range or the greatest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MATRIX = ("tcgen05.mma", "wgmma", "mma.sync", "mfma")  # the strongest that a family's kernels use


def main() -> None:
    manifests = [json.loads((Path(p) / "manifest.json").read_text()) for p in sys.argv[1:]]
    names = [m["target"]["name"] for m in manifests]
    families = sorted({kernel["family"] for m in manifests for kernel in m["kernels"]})
    print(row("family", *names), row(*["---"] * (1 + len(names))), sep="\n")
    for family in families:
        groups = [[k for k in m["kernels"] if k["family"] == family] for m in manifests]
        print(row(family, *(cell(group) for group in groups)))


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def cell(kernels: list[dict[str, Any]]) -> str:
    """One family on one target."""
    if not kernels:
        return ""
    used = [kernel["resources"] for kernel in kernels]
    registers = sorted({u["registers"] for u in used})
    span = "-".join(str(n) for n in registers[:: max(1, len(registers) - 1)])
    shared = max(kernel["launch"]["shared_bytes"] for kernel in kernels)
    kilobytes = str(-(-shared // 1024)) if shared >= 1024 or not shared else "<1"
    found = {name for u in used for name in u["instructions"]}
    matrix = next((name for name in MATRIX if any(f.startswith(name) for f in found)), "-")
    spilled = max(u["spill_bytes"] for u in used)
    return f"{len(kernels)}; {span}, {kilobytes}, {spilled}, {matrix}"


if __name__ == "__main__":
    main()
