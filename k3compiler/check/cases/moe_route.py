"""Cases of the router and the token sort."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from k3compiler.check.case import TOLERANCE, Array, Case, Params, poisoned
from k3compiler.reference.activations import sigmoid
from k3compiler.reference.moe import choose_experts, weigh_experts


def moe_topk(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """The first row is full of exact ties; in the others f32 rounding cannot change the order."""
    return _routed(params, rng, sizes.get("T", 7), has_ties=True)


def _routed(params: Params, rng: np.random.Generator, tokens: int, *, has_ties: bool) -> Case:
    experts, top_k = params["experts"], params["top_k"]
    bias = (0.1 * rng.standard_normal(experts)).astype(np.float32)
    bias[: experts // 2] = bias[0]
    logits = np.stack([_clear_row(rng, bias, top_k) for _ in range(tokens)])
    if has_ties:
        logits[0] = -30.0
        logits[0, : experts // 2] = rng.integers(-2, 2, experts // 2)
    scores = sigmoid(logits.astype(np.float64))
    ids = choose_experts(scores, bias.astype(np.float64), top_k)
    weights = weigh_experts(scores, ids, params["renormalize"], params["scale"])
    arguments = {
        "logits": logits,
        "bias": bias,
        "ids": poisoned(ids.shape, "i32"),
        "weights": poisoned(ids.shape, "f32"),
    }
    return Case(arguments, {"ids": ids, "weights": weights}, TOLERANCE["f32"])


def moe_route(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """One token (with exact ties in every second case), and the sort of what it chooses."""
    has_ties = bool(sizes.get("ties", int(rng.integers(2))))
    chosen = _routed(params, rng, 1, has_ties=has_ties)
    first = (params["experts"] - params["local_experts"]) // 2
    ids = chosen.expected["ids"].astype(np.int32)
    shape = {**params, "experts": params["local_experts"]}
    found = _with_lists(chosen, shape, ids, first)
    return replace(found, arguments={**found.arguments, "expert_first": first})


def _with_lists(case: Case, params: Params, ids: Array, first: int) -> Case:
    """The case of a kernel that makes the lists of its choices too."""
    _, pairs, block_expert, used = sorted_pairs(params, ids, first)
    expected = {
        "pairs": pairs,
        "block_expert": block_expert,
        "num_blocks": np.array([used], np.int32),
    }
    outputs = {name: poisoned(want.shape, "i32") for name, want in expected.items()}
    where = {"pairs": np.arange(len(pairs)) < used * params["block_rows"]}
    wanted = {**case.expected, **expected}
    return Case({**case.arguments, **outputs}, wanted, case.tolerance, where, frozenset({"pairs"}))


def moe_choose(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """The first of the tokens has exact ties."""
    chosen = _routed(params, rng, sizes.get("T", 7), has_ties=True)
    first = (params["experts"] - params["local_experts"]) // 2
    places = places_of(chosen.expected["ids"], first, params["local_experts"])
    arguments = {
        **chosen.arguments,
        "places": poisoned(places.shape, "i8"),
        "expert_first": first,
    }
    return Case(arguments, {**chosen.expected, "places": places}, chosen.tolerance)


def places_of(ids: Array, first: int, experts: int) -> Array:
    """``[T, experts]`` u8: of each local expert 1 and its rank among a token's choices, 0 if it was not chosen."""
    expert = first + np.arange(experts)
    ranks = np.arange(1, ids.shape[1] + 1)
    is_chosen = ids[:, :, None] == expert
    return (is_chosen * ranks[:, None]).sum(axis=1).astype(np.uint8)


def _gap(row: Array, bias: Array, top_k: int) -> float:
    """The smallest distance between neighbours among the best ``top_k + 1`` ranked scores."""
    ranked = np.sort(sigmoid(row.astype(np.float64)) + bias)[::-1][: top_k + 1]
    return float(np.min(-np.diff(ranked), initial=1.0))


def _clear_row(rng: np.random.Generator, bias: Array, top_k: int) -> Array:
    """Logits whose order f32 rounding cannot change."""
    while True:
        row = (1.5 * rng.standard_normal(len(bias))).astype(np.float32)
        if _gap(row, bias, top_k) >= 1e-5:
            return row


def choices(rng: np.random.Generator, params: Params, tokens: int) -> tuple[Array, int]:
    """Distinct experts per token out of twice the local ones, uneven, and the first local expert."""
    total, first = max(2 * params["experts"], params["top_k"]), params["experts"] // 2
    likely = rng.random(total) ** 2 + 1e-3
    likely[first] = 0.0  # a local expert that nobody chooses
    draws = rng.exponential(1.0, (tokens, total)) / np.maximum(likely, 1e-30)
    return np.argsort(draws, axis=1)[:, : params["top_k"]].astype(np.int32), first


def max_blocks(params: Params, tokens: int) -> int:
    """NB: what any routing of ``tokens`` tokens needs at most."""
    pairs = tokens * params["top_k"]
    return min(pairs, -(-pairs // params["block_rows"]) + params["experts"])


def sorted_pairs(params: Params, ids: Array, first: int) -> tuple[Array, Array, Array, int]:
    """``counts [E]``, ``pairs [NB*block_rows]`` (poison where no block is), ``block_expert [NB]``, blocks in use."""
    rows, count = params["block_rows"], max_blocks(params, len(ids))
    pairs, block_expert = poisoned((count * rows,), "i32"), np.full(count, -1, np.int32)
    counts, used = np.zeros(params["experts"], np.int32), 0
    for e in range(params["experts"]):
        mine = np.flatnonzero(ids.reshape(-1) == e + first)
        need = -(-len(mine) // rows)
        padded = np.full(need * rows, -1, np.int32)
        padded[: len(mine)] = mine
        pairs[used * rows : (used + need) * rows] = padded
        block_expert[used : used + need] = e
        counts[e], used = len(mine), used + need
    return counts, pairs, block_expert, used


def _starts(counts: Array, rows: int) -> Array:
    blocks = -(-counts // rows)
    return ((np.cumsum(blocks) - blocks) * rows).astype(np.int32)


def moe_count(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    ids, first = choices(rng, params, sizes.get("T", 13))
    counts = np.bincount(ids.reshape(-1), minlength=first + params["experts"])
    want = counts[first : first + params["experts"]].astype(np.int32)
    arguments = {"ids": ids, "counts": poisoned(want.shape, "i32"), "expert_first": first}
    return Case(arguments, {"counts": want}, 0.0)


def moe_offsets(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    shape = {**params, "top_k": 4}
    ids, first = choices(rng, shape, sizes.get("T", 13))
    counts, _, block_expert, used = sorted_pairs(shape, ids, first)
    expected = {
        "starts": _starts(counts, params["block_rows"]),
        "block_expert": block_expert,
        "num_blocks": np.array([used], np.int32),
    }
    outputs = {name: poisoned(want.shape, "i32") for name, want in expected.items()}
    return Case({"counts": counts, **outputs}, expected, 0.0)


def moe_group(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    ids, first = choices(rng, params, sizes.get("T", 13))
    places = places_of(ids, first, params["experts"])
    return _with_lists(Case({"places": places}, {}, 0.0), params, ids, first)


def moe_scatter(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    ids, first = choices(rng, params, sizes.get("T", 13))
    counts, pairs, _, used = sorted_pairs(params, ids, first)
    arguments = {
        "ids": ids,
        "starts": _starts(counts, params["block_rows"]),
        "pairs": poisoned(pairs.shape, "i32"),
        "expert_first": first,
    }
    where = {"pairs": np.arange(len(pairs)) < used * params["block_rows"]}
    return Case(arguments, {"pairs": pairs}, 0.0, where, frozenset({"pairs"}))
