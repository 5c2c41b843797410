"""Counts what one wave executes for 256 of K of an expert product on gfx950, through FlyDSL and through Triton.

    TINYGRAD_SRC=... python bench/amd_instructions.py > bench/results/amd-instructions.json

Runs each kernel on the emulator at two depths; the difference has no prologue and no epilogue in it. 64 sorted rows by
128 rows of weights, 4 waves. Instructions are not time: nothing here ran on a card.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DEPTHS = (2560, 3584)
STEP = 256


def counts_at(family: str, form: str, number_format: str, depth: int) -> tuple[Counter[str], Any]:
    """Instructions by name of a wave that has an expert, and the kernel."""
    from k3compiler.check.emulator.kernel import EmulatedKernel
    from k3compiler.check.emulator.runner import run_code
    from tests.targets.amd.flydsl_kernels import build, case_of, params_of, record_of

    is_first = family == "moe_gate_up"
    sizes = {"width": depth, "inner": 64} if is_first else {"inner": depth, "width": 128}
    params = params_of(family, format=number_format, experts=2, top_k=1, block_choices=1, **sizes)
    if is_first:
        del params["block_choices"]
    built = build(family, params, form=form)
    record, case = record_of(family, params, built, form), case_of(family, params, tokens=40)
    kernel, counts = EmulatedKernel(built.files["hsaco"]), Counter[str]()
    run_code(kernel, record, case.arguments, counts=counts)
    active = int((case.arguments["block_expert"] >= 0).sum()) * built.launch.num_warps
    return Counter({name: count / active for name, count in counts.items()}), (built, kernel.note)


def row(family: str, form: str, number_format: str) -> dict[str, Any]:
    """One line of the table."""
    from k3compiler.check.emulator.kernel import classes

    few, _ = counts_at(family, form, number_format, DEPTHS[0])
    many, (built, note) = counts_at(family, form, number_format, DEPTHS[1])
    steps = (DEPTHS[1] - DEPTHS[0]) // STEP
    each = {name: (many[name] - few[name]) / steps for name in many}
    by_class = classes(Counter({n: round(c * 1000) for n, c in each.items()}))
    return {
        "kernel": family,
        "through": form,
        "format": number_format,
        "instructions": round(sum(each.values()), 1),
        "by_class": {n: round(c / 1000, 1) for n, c in by_class.items() if c},
        "vgprs": note.vgprs,
        "lds_bytes": built.launch.shared_bytes,
        "spills": note.vgpr_spills,
    }


def main() -> None:
    sys.path.insert(0, str(ROOT))
    rows = [
        row(family, form, number_format)
        for family in ("moe_down", "moe_gate_up")
        for number_format in ("a16w4", "a8w4")
        for form in ("flydsl", "triton")
    ]
    print(
        json.dumps({"unit": "instructions a wave and 256 of K, 64 x 128", "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
