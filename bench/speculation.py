"""What a draft brings in the engine, and what the two ways to roll a verify back cost.

    python bench/speculation.py PKG --weights DIR --draft DIR [--only steps rollback model] [--out FILE.json]

``steps``: tokens per step behind 12 held-out prompts of 256 tokens, 128 new ones each, greedy.
``rollback``: a verify of 8 tokens on one core of this machine, in CPU time: a state after every token
and a copy of one, or one state at the end and the tokens accepted run again (all of the model, or its
KDA launches alone).
``model``: the same for Kimi K3 on H200s at tensor parallel 8, by bytes over the memory's rate.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from k3compiler.config import ModelConfig
from k3compiler.graph.config_import import resolve_model
from k3compiler.runtime.engine import Engine
from k3compiler.runtime.plan_runner import PlanRunner
from k3compiler.runtime.sampling import SamplingParams
from k3compiler.runtime.step import SeqChunk, StepInputs
from k3compiler.targets.base import find_target

HELD_OUT = Path("examples/heldout")
WIDTH, ACCEPTED, CONTEXT = 8, 3, 256
TP, LAUNCH_US, KDA_LAUNCHES = 8, 2.0, 5
Row = dict[str, Any]


def steps(engine: Engine) -> Row:
    """Tokens of a request per step, by kind of text."""
    params, found = SamplingParams(max_tokens=128, ignore_eos=True), Row()
    for kind in ("code", "prose"):
        ids = engine.tokenizer.encode((HELD_OUT / f"{kind}.txt").read_text())
        starts = np.linspace(0, len(ids) - 384, 12).astype(int).tolist()
        before = engine.metrics()
        engine.generate([ids[s : s + 256] for s in starts], params)
        after = engine.metrics()
        made, accepted = (
            after[key] - before[key]
            for key in ("generation_tokens_total", "spec_decode_num_accepted_tokens_total")
        )
        later = made - len(starts)  # a prompt's first token is its prefill's
        found[kind] = {
            "tokens_per_step": round(later / (later - accepted), 3),
            "steps": later - accepted,
        }
    return found


def rollback(engine: Engine) -> list[Row]:
    return [rollback_of(engine, batch) for batch in (1, 4)]


def rollback_of(engine: Engine, batch: int) -> Row:
    """Milliseconds of a verify's parts for ``batch`` sequences, the least of several."""
    rng, executor, memory = np.random.default_rng(3), engine.executor, engine.cache.memory
    opened = [engine.cache.open(CONTEXT + WIDTH) for _ in range(batch)]
    held = [one for one in opened if one is not None]
    for one in held:
        engine.cache.grow(one, CONTEXT + WIDTH)

    def chunks(count: int, keeps: bool = False) -> list[SeqChunk]:
        tokens = rng.integers(0, 4000, (batch, count)).astype(np.int32)
        kept = [
            {CONTEXT + 1 + i: engine.cache.scratch_row(row, i) for i in range(count - 1)}
            for row in range(batch)
        ]
        return [
            SeqChunk(fed, CONTEXT, one.slot, one.pages, "all", k if keeps else {}, is_verify=keeps)
            for fed, one, k in zip(tokens, held, kept, strict=True)
        ]

    def run(*fed: Any) -> Callable[[], Any]:
        made = chunks(*fed)
        return lambda: executor.prefill(made, want_logits=True)

    live = np.array([one.slot for one in held])
    scratch = np.array([engine.cache.scratch_row(row, 0) for row in range(batch)])
    result: Row = {
        "batch": batch,
        "verify_with_states_ms": least_ms(run(WIDTH, True)),
        "copy_a_state_ms": least_ms(lambda: memory.copy_slots(scratch, live)),
        "verify_ms": least_ms(run(WIDTH)),
        "model_again_ms": least_ms(run(ACCEPTED)),
        "kda_again_ms": kda_ms(executor.runner("prefill"), run(ACCEPTED)),
        "slot_bytes": memory.map.layout.slot_bytes,
    }
    for one in held:
        engine.cache.close(one)
    return result


def least_ms(call: Callable[[], Any], repeats: int = 5) -> float:
    times: list[float] = []
    for _ in range(repeats):
        begin = process_time()
        call()
        times.append(1e3 * (process_time() - begin))
    return round(min(times), 3)


def kda_ms(runner: PlanRunner, call: Callable[[], Any]) -> float:
    """Of a prefill, the part in KDA launches."""
    stamps: list[float] = []

    def stamp(_runner: PlanRunner, _step: StepInputs) -> None:
        stamps.append(process_time())

    runner.after_step = dict.fromkeys(range(len(runner.plan.steps)), stamp)
    is_kda = np.array([step.op.startswith("kda.") for step in runner.plan.steps[1:]])
    sums: list[float] = []
    for _ in range(3):
        stamps.clear()
        call()
        sums.append(1e3 * float(np.diff(stamps)[is_kda].sum()))
    runner.after_step = {}
    return round(min(sums), 3)


def model() -> list[Row]:
    """Kimi K3: microseconds and bytes a sequence, by the memory's rate alone; KDA launches counted."""
    config, peak = resolve_model("kimi-k3")[0], find_target("h200").bytes_per_s
    assert peak is not None
    rate = peak / 1e6  # bytes a microsecond
    state, inputs = state_bytes(config), input_bytes(config)
    layers = sum(not config.is_mla(n) for n in range(config.num_layers))
    rows: list[Row] = []
    for batch in (1, 4, 16, 64):
        experts = expert_bytes(config, batch * ACCEPTED)
        rows.append(
            {
                "batch": batch,
                "states_us": round(batch * (WIDTH + 1) * state / rate, 1),
                "kda_again_us": round(
                    batch * (2 * state + 2 * inputs) / rate + layers * KDA_LAUNCHES * LAUNCH_US, 1
                ),
                "kda_again_fused_us": round(
                    batch * (2 * state + 2 * inputs) / rate + layers * LAUNCH_US, 1
                ),
                "model_again_us": round((batch * 2 * state + experts) / rate, 1),
                "states_mb": round(batch * (WIDTH - 1) * state / 1e6),
                "kda_again_mb": round(batch * (state + inputs) / 1e6),
            }
        )
    return rows


def state_bytes(config: ModelConfig) -> int:
    """Of one slot on one rank, bf16 conv states."""
    kda, heads = config.kda, config.kda.num_heads // TP
    one = heads * kda.head_dim * (4 * kda.head_dim + 2 * 3 * (kda.conv_size - 1))
    return one * sum(not config.is_mla(n) for n in range(config.num_layers))


def input_bytes(config: ModelConfig) -> int:
    """q, k, v, decay and beta of a verify's tokens, every layer, bf16."""
    row = config.kda.num_heads // TP * (4 * config.kda.head_dim + 1)
    return 2 * WIDTH * row * sum(not config.is_mla(n) for n in range(config.num_layers))


def expert_bytes(config: ModelConfig, tokens: int) -> int:
    """Packed experts that a rank reads for so many tokens, chosen at random."""
    moe = config.moe
    assert moe is not None and moe.latent_dim is not None
    share = 1 - (1 - moe.top_k / moe.num_experts) ** tokens
    one = 3 * moe.latent_dim * moe.expert_dim * 17 // 32 // TP  # 4 bits and a byte for 32
    return int(share * moe.num_experts * one) * (config.num_layers - config.num_dense)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["steps", "rollback", "model"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    results: Row = {}
    engine = Engine(
        options.package, options.weights, draft=options.draft, max_context=512, num_threads=1
    )
    with closing(engine):
        sections = {"steps": steps, "rollback": rollback, "model": lambda _: model()}
        for name in options.only:
            results[name] = sections[name](engine)
            print(name, json.dumps(results[name], indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
