#!/usr/bin/env bash
# Verifies and times packages on this machine's GPU: bench/device_check.sh OUT PKG...
# For each package: OUT/verify-NAME.json, OUT/bench-NAME.json; a short table last.
set -uo pipefail
out=$1; shift
mkdir -p "$out"
for package in "$@"; do
  name=$(basename "$package")
  echo "== $name"
  start=$SECONDS
  python3 -m k3compiler.cli.main verify "$package" --json > "$out/verify-$name.json" 2> "$out/verify-$name.err" \
    || tail -5 "$out/verify-$name.err"
  echo "verify: $((SECONDS - start)) s"; start=$SECONDS
  python3 -m k3compiler.cli.main bench "$package" -o "$out/bench-$name.json" > "$out/bench-$name.txt" 2>&1 \
    || tail -5 "$out/bench-$name.txt"
  echo "bench: $((SECONDS - start)) s"
  python3 - "$out/verify-$name.json" <<'PY'
import json, sys
rows = json.load(open(sys.argv[1]))
bad = [r for r in rows if not r["passed"]]
print(f"{len(rows) - len(bad)} of {len(rows)} outputs within tolerance")
for r in bad:
    print("  FAILED", r)
PY
done
