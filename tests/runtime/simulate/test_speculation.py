"""Verifying several tokens a step changes nothing but the number of steps."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.simulate.runs import Run, part, request

CONFIG: dict[str, Any] = {"arena_bytes": 4 * 2**30}


@pytest.mark.parametrize("accept", [[0], [7], [3, 0, 7, 1], 5])
def test_outputs_do_not_depend_on_drafts(accept: Any) -> None:
    lines = [request(str(i), part("s", 60 + i), max_tokens=150) for i in range(3)]
    lines += [request("more", part("t", 20), continue_of="0")]
    plain = Run(CONFIG, lines)
    run = Run(CONFIG | {"speculative": {"width": 8, "accept": accept}}, lines)
    for name in ("0", "1", "2", "more"):
        assert run.of("finished", name)[0]["output"] == plain.of("finished", name)[0]["output"]
    assert run.hit("more") == plain.hit("more"), "keys only for accepted tokens"
    if accept == [7]:
        assert run.summary["steps"] < plain.summary["steps"] / 6


def test_a_verify_never_passes_the_limit() -> None:
    run = Run(
        CONFIG | {"speculative": {"width": 8, "accept": [7]}},
        [request("a", part("s", 10), max_tokens=11)],
    )
    chunks = [(e["start"], e["tokens"]) for e in run.of("chunk", "a")]
    assert chunks == [(0, 10), (10, 8), (18, 2)]
