"""The other engines' policies: hits as runtime anchors A3-A9 derive them, worked out by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3compiler.runtime.cache.unit_keys import Tokens
from k3compiler.runtime.simulate.fake_model import stream_tokens
from k3compiler.runtime.simulate.policies import BoundPolicy, PagedPolicy, TreePolicy

GIB = 2**30
SIZES = {"token_bytes": 27_648, "state_bytes": 56_171_520}
OUT = stream_tokens("out", 0, 10)


def prompt(stop: int, user: str = "", more: int = 0) -> Tokens:
    return np.concatenate([stream_tokens("s", 0, stop), stream_tokens(user, 0, more)])


def paged(num_bytes: int = 64 * GIB, *, keep_all: bool = False) -> PagedPolicy:
    return PagedPolicy(num_bytes, **SIZES, keep_all=keep_all)


def test_paged_a_repeat_hits_the_tail() -> None:
    """The tail is floor((P-1)/128)*128; a longer prompt finds it, too."""
    policy = paged()
    assert policy.serve(prompt(2000), OUT) == 0
    assert policy.serve(prompt(2000), OUT) == 1920
    assert policy.serve(prompt(5000), OUT) == 1920
    assert policy.serve(prompt(1920), OUT) == 1536, "the cap is below the tail: the last page"


def test_paged_below_a_page_only_the_very_tail_is_known() -> None:
    policy = paged()
    assert policy.serve(prompt(1000), OUT) == 0
    assert policy.serve(prompt(1000, "u", 50), OUT) == 896
    assert policy.serve(prompt(800), OUT) == 0, "interior boundaries of a page have no key"


def test_paged_junctions_are_floored_to_a_page() -> None:
    """Two requests share 5,000 tokens; the second keeps the state at 4,608, the third uses it."""
    policy = paged()
    assert [policy.serve(prompt(5000, u, 3000), OUT) for u in "abc"] == [0, 0, 4608]


def test_paged_states_of_chunk_ends_are_kept_on_request() -> None:
    """With every boundary kept, chunks of 7,680 leave a state there for the second already."""
    long = [prompt(9000, u, 9000) for u in "ab"]
    assert [paged(keep_all=False).serve(p, OUT) for p in long] == [0, 0]
    policy = paged(keep_all=True)
    assert [policy.serve(p, OUT) for p in long] == [0, 7680]


def test_paged_forgets_the_tail_of_the_least_recently_used_first() -> None:
    """Room for little more than one prompt (a state takes two pages, live and kept)."""
    policy = paged(15 * 1536 * 27_648)
    first, second = prompt(6000), stream_tokens("t", 0, 6000)
    assert policy.serve(first, OUT) == 0
    assert policy.serve(first, OUT) == 5888
    policy.serve(second, OUT)
    assert policy.serve(first, OUT) == 4608, "the tail went, the last whole page is left"


def test_tree_a_repeat_of_a_whole_unit_misses_and_branches() -> None:
    """The state at P = 2048 is past the cap; the repeat saves one at 1984, which the third uses."""
    policy = TreePolicy(64 * GIB, **SIZES)
    assert [policy.serve(prompt(2048), OUT) for _ in range(3)] == [0, 0, 1984]
    assert TreePolicy(64 * GIB, **SIZES).serve(prompt(2000), OUT) == 0


def test_tree_branch_point_then_hit() -> None:
    policy = TreePolicy(64 * GIB, **SIZES)
    assert [policy.serve(prompt(5000, u, 3000), OUT) for u in "abc"] == [0, 0, 4992]


def test_tree_decoding_is_tracked_every_256() -> None:
    policy = TreePolicy(64 * GIB, **SIZES)
    output = stream_tokens("out", 0, 300)
    policy.serve(prompt(1000), output)
    turn = np.concatenate([prompt(1000), output, stream_tokens("next", 0, 50)])
    assert policy.serve(turn, OUT) == 1280


def test_tree_evicts_leaves() -> None:
    policy = TreePolicy(2 * 56_171_520 * 2 + 3000 * 27_648, **SIZES)
    policy.serve(prompt(2000), OUT)
    policy.serve(stream_tokens("t", 0, 2000), OUT)
    assert policy.serve(prompt(2000), OUT) == 0


def test_bound_is_the_longest_common_prefix_in_units() -> None:
    policy = BoundPolicy()
    policy.serve(prompt(1000), OUT)
    assert policy.serve(prompt(1000), OUT) == 960
    assert policy.serve(prompt(1024), OUT) == 960
    assert policy.serve(prompt(500, "x", 500), OUT) == 448
    turn = np.concatenate([prompt(1000), OUT, stream_tokens("y", 0, 300)])
    assert policy.serve(turn, OUT) == 960


def load_bench() -> Any:
    """bench/cache_policies.py as a module."""
    path = Path(__file__).parents[3] / "bench" / "cache_policies.py"
    spec = importlib.util.spec_from_file_location("cache_policies", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "gigabytes", "least"),
    [
        ("agents", 32, 0.99),
        ("agents", 2, 0.0),
        ("agents", 1, 0.0),
        ("system", 32, 0.99),
        ("system", 1, 0.99),
        ("boundaries", 32, 0.99),
    ],
)
def test_ours_is_at_least_the_better_one(workload: str, gigabytes: int, least: float) -> None:
    bench = load_bench()
    requests = {
        "agents": lambda: bench.agent_sessions(6, 4),
        "system": lambda: bench.shared_system_prompt(40),
        "boundaries": bench.boundaries,
    }[workload]()
    row = bench.compare(workload, requests, gigabytes * GIB)
    others = ("paged 1536", "paged 1536, all states", "tree 64")
    assert row["wrong_outputs"] == 0
    assert max(row[name] for name in others) <= row["ours"] <= row["bound"], row
    assert row["of_bound"] >= least
