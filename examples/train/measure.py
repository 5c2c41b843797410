"""Measure k3-nano and its draft, as the package for the CPU and the numpy reference run them.

    python -m examples.train.measure --data .train-data --package PKG --metrics OUT/metrics.json \
        --out bench/results/k3-nano-quality.json [--only predictions baselines ...]

``PKG`` is examples/k3-nano compiled for the CPU. Needs no GPU and no torch; a section takes
seconds to minutes and replaces its older numbers in the file.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.train.behaviour import (
    draft_steps,
    gates_and_router,
    greedy,
    held_out,
    open_draft,
    open_model,
    packing_matters,
    parting,
)
from examples.train.ngram import ByteModel
from examples.train.predicting import (
    WINDOW,
    Vocabulary,
    measure_baselines,
    measure_predictions,
    training_text,
)
from examples.train.shape import NUM_RANKS
from k3compiler.runtime.engine import Engine
from k3compiler.runtime.sampling import SamplingParams
from k3compiler.runtime.tokenizer import Tokenizer

KINDS = ("code", "prose")
TARGET = Path("examples/k3-nano")
DRAFT = Path("examples/k3-nano-dspark")
NUM_NEW = 128
PROMPT = 256
Section = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where the shards, the package and the training program's own metrics are."""

    data: Path
    package: Path
    metrics: Path | None

    def engine(self) -> Engine:
        return Engine(self.package, TARGET, max_context=WINDOW, max_sequences=1)

    def vocabulary(self) -> Vocabulary:
        tokenizer = Tokenizer(TARGET)
        return Vocabulary.of(tokenizer.token_bytes, NUM_RANKS, tokenizer.num_tokens)


def training(inputs: Inputs) -> Section:
    """What the training program scored at its end."""
    if inputs.metrics is None:
        raise SystemExit("training: needs --metrics")
    metrics: Section = json.loads(inputs.metrics.read_text())
    return {key: metrics[key] for key in ("steps", "seconds", *KINDS)}


def predictions(inputs: Inputs) -> Section:
    vocabulary = inputs.vocabulary()
    with closing(inputs.engine()) as engine:
        return {
            kind: measure_predictions(engine.logits, inputs.data, kind, vocabulary)
            for kind in KINDS
        }


def baselines(inputs: Inputs) -> Section:
    vocabulary = inputs.vocabulary()
    model = ByteModel.fit(training_text(inputs.data, vocabulary))
    found: Section = {
        kind: measure_baselines(model, inputs.data, kind, vocabulary) for kind in KINDS
    }
    return found | {"distinct_5grams": len(model.levels[-1].grams)}


def behaviour(inputs: Inputs) -> Section:
    """Gates and router on held-out text, by the reference in float32."""
    model = open_model(TARGET, np.float32)
    pieces = [p for kind in KINDS for p in held_out(inputs.data, kind, 3, 1024)]
    return gates_and_router(model, pieces)


def packing(inputs: Inputs) -> Section:
    (tokens,) = held_out(inputs.data, "code", 1, PROMPT)
    return {"tokens": PROMPT, "equal_bits": not packing_matters(TARGET, tokens)}


def equal_outputs(inputs: Inputs) -> Section:
    """Greedy tokens of the package and of mlx-lm against the reference's in float64."""
    from tests.oracles.mlx_oracle import MlxOracle

    model, oracle = open_model(TARGET, np.float64), MlxOracle(TARGET)
    found: Section = {"tokens": NUM_NEW}
    with closing(inputs.engine()) as engine:
        for kind in KINDS:
            (prompt,) = held_out(inputs.data, kind, 1, 64)
            cache, other = model.new_cache(), oracle.new_cache()
            want, rows = greedy(lambda t, c=cache: model.forward(t, c), prompt, NUM_NEW)
            mlx, _ = greedy(lambda t, c=other: oracle.forward(t, c), prompt, NUM_NEW)
            cpu = _continue(engine, prompt)
            found[kind] = {"cpu": parting(want, rows, cpu), "mlx_lm": parting(want, rows, mlx)}
    return found


def draft(inputs: Inputs) -> Section:
    """Tokens per target step of the numpy draft behind held-out prompts."""
    model = open_model(TARGET, np.float32)
    net = open_draft(DRAFT, model)
    found: Section = {"prompts": 12, "prompt_tokens": PROMPT, "new_tokens": NUM_NEW}
    with closing(inputs.engine()) as engine:
        for kind in KINDS:
            prompts = held_out(inputs.data, kind, 12, PROMPT)
            accepted = draft_steps(model, net, lambda p: _continue(engine, p), prompts)
            found[kind] = {
                "tokens_per_step": 1 + sum(accepted) / len(accepted),
                "steps": len(accepted),
                "accepted": np.bincount(accepted, minlength=net.config.block + 1).tolist(),
            }
    return found


def _continue(engine: Engine, prompt: Sequence[int]) -> list[int]:
    params = SamplingParams(max_tokens=NUM_NEW, ignore_eos=True)
    (done,) = engine.generate([list(prompt)], params)
    return list(done.tokens)


SECTIONS: dict[str, Callable[[Inputs], Section]] = {
    "training": training,
    "predictions": predictions,
    "baselines": baselines,
    "behaviour": behaviour,
    "packing": packing,
    "equal_outputs": equal_outputs,
    "draft": draft,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--metrics", type=Path, default=None, help="target.py's metrics.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    options = parser.parse_args()
    inputs = Inputs(options.data, options.package, options.metrics)
    for name in options.only:
        began = time.perf_counter()
        section = SECTIONS[name](inputs)
        results = json.loads(options.out.read_text()) if options.out.is_file() else {}
        options.out.write_text(json.dumps(results | {name: section}, indent=1) + "\n")
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
