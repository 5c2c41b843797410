#!/bin/sh
# The whole path on the small example checkpoint; `make demo` runs it.
# Needs k3c with the extra [compile], no GPU. Environment: K3C, OUT, PROMPT (prose to continue).
set -eu
cd "$(dirname "$0")/.."
K3C=${K3C:-k3c} OUT=${OUT:-out/demo} PROMPT=${PROMPT:-A transaction is a sequence of operations that}
MODEL=examples/k3-nano
CODE='import json
from pathlib import Path


def read_config(path):
    """Read the configuration from a JSON file."""
'

run() {  # shows a command, then runs it
    printf '\n$ k3c'
    for word; do
        case $word in *' '*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
    done
    printf '\n'
    "$K3C" "$@"
}

echo "== Compile a checkpoint for this CPU, check every kernel against the reference, generate"
run compile $MODEL --target cpu --out "$OUT/cpu"
"$K3C" verify "$OUT/cpu" --json > "$OUT/cpu-verify.json"
echo "k3c verify $OUT/cpu: every kernel agrees with the reference ($OUT/cpu-verify.json)"
run generate "$OUT/cpu" --weights $MODEL --temperature 0.7 --top-p 0.9 --seed 1 --max-tokens 72 \
    --prompt "$CODE"
run generate "$OUT/cpu" --weights $MODEL --temperature 0.7 --top-p 0.9 --seed 2 --max-tokens 72 \
    --prompt "$PROMPT"
echo "(a small model: it writes like code and like English, and knows nothing)"

echo
echo "== Build the same checkpoint for chips that are not here"
run compile $MODEL --target gb300 --out "$OUT/gb300"
run compile $MODEL --target mi355x --out "$OUT/mi355x"

echo
echo "== Look at what came out"
for target in cpu gb300 mi355x; do
    run inspect "$OUT/$target" --brief --html "$OUT/$target.html"
done
