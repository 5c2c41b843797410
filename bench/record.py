"""Keeps a device run as data: bench/record.py NAME BENCH.json VERIFY.json -> bench/results/NAME.json.

Adds the commit that was run, and every verified output with its error.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    name, bench, verify = sys.argv[1:4]
    record = json.loads(Path(bench).read_text())
    rows = json.loads(Path(verify).read_text())
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=RESULTS, capture_output=True, text=True, check=True
    )
    record["commit"] = commit.stdout.strip()
    record["verified"] = [
        {k: row[k] for k in ("kernel", "output", "error", "tolerance", "passed")} for row in rows
    ]
    target = RESULTS / f"{name}.json"
    target.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    print(f"{target}: {len(record['rows'])} timings, {len(rows)} outputs verified")


if __name__ == "__main__":
    main()
