"""Keeps an emulator run as data and prints docs/amd.md's table: bench/emulated.py NAME MODEL VERIFY.json [PROGRAMS].

VERIFY.json is what ``k3c verify PKG --on emulator [--programs N] --json`` printed; it becomes bench/results/NAME.json.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
HEAD = ("family", "kernels", "worst error", "VGPR", "LDS", "spills", "instructions", "verdict")
CLASSES = 4  # the most frequent ones


def main() -> None:
    name, model, verify, *programs = sys.argv[1:]
    rows = json.loads(Path(verify).read_text())
    flag = f" --programs {programs[0]}" if programs else ""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=RESULTS, capture_output=True, text=True, check=True
    )
    record = {
        "command": f"k3c verify PKG --on emulator{flag}",
        "commit": commit.stdout.strip(),
        "date": date.today().isoformat(),
        "model": model,
        "rows": rows,
        "target": "mi355x",
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    print("\n".join(f"| {' | '.join(line)} |" for line in table(rows)))


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each kernel family, as in docs/amd.md."""
    families: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        families.setdefault(re.sub(r"_[0-9a-f]{8}$", "", row["kernel"]), []).append(row)
    lines = [family_line(name, group) for name, group in sorted(families.items())]
    return [list(HEAD), ["---"] * len(HEAD), *lines]


def family_line(name: str, group: list[dict[str, Any]]) -> list[str]:
    counts: Counter[str] = sum((Counter(row["instructions"]) for row in group), Counter())
    shares = [f"{k} {100 * n // counts.total()}%" for k, n in counts.most_common(CLASSES)]
    return [
        name,
        str(len(group)),
        f"{max(row['error'] for row in group):.1e}",
        span([row["vgprs"] for row in group]),
        f"{max(row['lds_bytes'] for row in group) // 1024} KB",
        str(sum(row["spills"] for row in group)),
        ", ".join(shares),
        "right" if all(row["passed"] for row in group) else "WRONG",
    ]


def span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


if __name__ == "__main__":
    main()
