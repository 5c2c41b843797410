"""Reused prompt tokens of this runtime, of two other designs, and of the upper bound.

    python bench/cache_policies.py [--quick] [--out bench/results/cache-policies.json]

Every workload is a trace whose requests run one after another, so that all policies see the same
order; the outputs are those of the simulator's fake model. Sizes are Kimi K3 at TP8.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from k3compiler.runtime.simulate.config import parse_config
from k3compiler.runtime.simulate.policies import (
    BoundPolicy,
    PagedPolicy,
    ReusePolicy,
    TreePolicy,
)
from k3compiler.runtime.simulate.run import Simulation
from k3compiler.runtime.simulate.trace import parse_request

GIB = 2**30
Requests = list[dict[str, Any]]


def part(stream: str, stop: int, start: int = 0) -> dict[str, Any]:
    return {"stream": stream, "start": start, "stop": stop}


def in_turn(requests: Requests) -> Requests:
    """Each request long after the one before has finished: the clock jumps over idle steps."""
    return [{**request, "arrival_step": 2000 * i} for i, request in enumerate(requests)]


def agent_sessions(sessions: int, turns: int) -> Requests:
    """Tool-using sessions, turn by turn in turn: history, a tool result, an answer."""
    rng = np.random.default_rng(11)
    found: Requests = []
    for turn in range(turns):
        for session in range(sessions):
            name = f"s{session}"
            request: dict[str, Any] = {
                "id": f"{name}.{turn}",
                "max_tokens": int(rng.integers(40, 300)),
            }
            if turn == 0:
                task = int(rng.integers(500, 3000))
                request["prompt"] = [part("system", 4000), part(name, task)]
            else:
                result = int(rng.integers(100, 2500))
                request["prompt"] = [part(f"{name}.tool{turn}", result)]
                request["continue_of"] = f"{name}.{turn - 1}"
            found.append(request)
    return found


def shared_system_prompt(count: int) -> Requests:
    """One system prompt, ``count`` users."""
    rng = np.random.default_rng(12)
    return [
        {
            "id": str(i),
            "prompt": [part("system", 5000), part(f"user{i}", int(rng.integers(20, 600)))],
            "max_tokens": int(rng.integers(2, 40)),
        }
        for i in range(count)
    ]


def boundaries() -> Requests:
    """Prompts around every boundary, each sent three times and then continued."""
    found: Requests = []
    sizes = [1, *(b + d for b in (64, 128, 256, 1536, 3072, 8192, 16384) for d in (-1, 0, 1))]
    for size in sizes:
        for again in range(3):
            name = f"{size}.{again}"
            found.append({"id": name, "prompt": [part(f"b{size}", size)], "max_tokens": 3})
        more = {"id": f"{size}.more", "continue_of": f"{size}.0", "prompt": [part("more", 100)]}
        found.append({**more, "max_tokens": 3})
    return found


def million() -> Requests:
    """Three prompts of a million tokens that share 900,000, and a second turn of each."""
    found: Requests = []
    for index in range(3):
        prompt = [part("book", 900_000), part(f"q{index}", 99_000)]
        found.append({"id": f"m{index}", "prompt": prompt, "max_tokens": 4})
    for index in range(3):
        again = {"id": f"n{index}", "continue_of": f"m{index}", "prompt": [part(f"r{index}", 500)]}
        found.append({**again, "max_tokens": 4})
    return found


WORKLOADS: dict[str, tuple[Callable[[], Requests], int]] = {
    "agent sessions, 8 x 8 turns": (lambda: agent_sessions(8, 8), 64 * GIB),
    "agent sessions, 24 x 6 turns, 12 GiB": (lambda: agent_sessions(24, 6), 12 * GIB),
    "agent sessions, 24 x 6 turns, 6 GiB": (lambda: agent_sessions(24, 6), 6 * GIB),
    "agent sessions, 24 x 6 turns, 4 GiB": (lambda: agent_sessions(24, 6), 4 * GIB),
    "one system prompt, 1,000 requests": (lambda: shared_system_prompt(1000), 64 * GIB),
    "one system prompt, 1,000 requests, 1 GiB": (lambda: shared_system_prompt(1000), GIB),
    "around every boundary": (boundaries, 64 * GIB),
    "1M-token prompts": (million, 128 * GIB),
}


def simulate(requests: Requests, num_bytes: int, **options: Any) -> tuple[list[Any], int]:
    """(prompt, output, hit) of every request in order of admission, and wrong outputs."""
    config = parse_config({"arena_bytes": num_bytes, **options})
    hits: list[tuple[str, int]] = []

    def write(event: dict[str, Any]) -> None:
        if event["event"] == "admitted":
            hits.append((event["id"], event["hit_tokens"]))

    traced = [parse_request(r) for r in in_turn(requests)]
    sim = Simulation(config, traced, write, check=True)
    summary = sim.run()
    served = [(sim.jobs[i].prompt, sim.jobs[i].outputs, hit) for i, hit in hits]
    return served, summary["wrong_outputs"]


def compare(name: str, requests: Requests, num_bytes: int) -> dict[str, Any]:
    """One row of the table: reused tokens by policy."""
    served, wrong = simulate(requests, num_bytes)
    config = parse_config({})
    sizes = {"token_bytes": config.mla_token_bytes, "state_bytes": config.state_bytes}
    policies: dict[str, ReusePolicy] = {
        "paged 1536": PagedPolicy(num_bytes, **sizes),
        "paged 1536, all states": PagedPolicy(num_bytes, **sizes, keep_all=True),
        "tree 64": TreePolicy(num_bytes, **sizes),
        "bound": BoundPolicy(),
    }
    row: dict[str, Any] = {
        "workload": name,
        "requests": len(served),
        "prompt_tokens": sum(len(prompt) for prompt, _, _ in served),
        "wrong_outputs": wrong,
        "ours": sum(hit for _, _, hit in served),
    }
    for policy_name, policy in policies.items():
        found = [policy.serve(prompt, output) for prompt, output, _ in served]
        row[policy_name] = sum(found)
        if policy_name == "bound" and "24 x" in name:
            lengths = [len(prompt) for prompt, _, _ in served]
            totals = [len(prompt) + len(output) for prompt, output, _ in served]
            row["clairvoyant at most"] = clairvoyant_bound(
                lengths, totals, found, num_bytes, sessions=24
            )
    row["of_bound"] = round(row["ours"] / max(1, row["bound"]), 4)
    return row


def clairvoyant_bound(
    prompts: Sequence[int], totals: Sequence[int], hits: Sequence[int], num_bytes: int, *,
    sessions: int, shared: int = 4000,
) -> int:  # fmt: skip
    """Reused tokens that no policy can exceed in ``num_bytes``, whatever it knows of the future.

    For sessions that take turns over a shared prompt. Between two turns of a session its state and its
    own cells are there or not (a part of them saves less per byte). While another session's request runs
    they lie beside that one's state and cells. Choosing what to keep is a packing problem; the value of
    its Lagrangian relaxation at any prices, one per request, bounds it, and prices are improved by
    subgradient steps.

    Shapes: all per request, in order: tokens of the prompt, of prompt and output, and the most that
    could be reused.
    """
    config = parse_config({})
    state, token = config.state_bytes, config.mla_token_bytes
    hit = np.array(hits)
    base = np.minimum(hit, shared // 64 * 64)
    gain, cost = (hit - base).astype(float), state + token * np.maximum(hit - shared, 0.0)
    own = state + token * (np.array(totals) - shared)
    room = num_bytes - own - (state + token * shared)
    covers = np.zeros((len(hit), len(hit)), np.bool_)
    for request in range(sessions, len(prompts)):
        covers[request, request - sessions + 1 : request] = True
    prices = np.full(len(hit), gain.mean() / cost.mean() / sessions)
    best = np.inf
    for step in range(5000):
        rent = cost * (covers @ prices)
        best = min(best, prices @ room + np.maximum(gain - rent, 0).sum())
        slope = room - covers.T @ ((gain > rent) * cost)
        size = 3 * prices.mean() / (1 + step / 50) ** 0.7
        prices = np.maximum(0, prices - slope / np.linalg.norm(slope) * size)
    return int(base.sum() + min(best, gain.sum()))


def admitted_sessions(num_bytes: int) -> dict[str, int]:
    """How many of 48 sessions of 256k tokens run at once, by kind of memory."""
    requests = [
        {"id": str(i), "prompt": [part(f"s{i}", 262_144)], "max_tokens": 2} for i in range(48)
    ]
    found: dict[str, int] = {}
    for memory in ("unified", "static"):
        config = parse_config(
            {"arena_bytes": num_bytes, "memory": memory, "max_batched_tokens": 2**25}
        )
        sim = Simulation(config, [parse_request(r) for r in requests])
        found[memory] = sim.run()["max_running"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out what takes minutes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, (make, num_bytes) in WORKLOADS.items():
        if options.quick and "1M" in name:
            continue
        rows.append(compare(name, make(), num_bytes))
        print(rows[-1], flush=True)
    result: dict[str, Any] = {"reused_tokens": rows}
    if not options.quick:
        result["sessions_of_256k_at_once"] = admitted_sessions(240 * GIB)
        print(result["sessions_of_256k_at_once"])
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
