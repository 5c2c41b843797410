"""What k3-nano does: equal outputs, equal bits, and the measured record within its bounds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3compiler.runtime.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
NANO, DRAFT = ROOT / "examples" / "k3-nano", ROOT / "examples" / "k3-nano-dspark"
sys.path.insert(0, str(ROOT))

from examples.train.behaviour import (  # noqa: E402
    TIE,
    draft_steps,
    gates_and_router,
    greedy,
    open_draft,
    open_model,
    packing_matters,
    parting,
)
from examples.train.probes import ProbedModel  # noqa: E402

KINDS = ("code", "prose")


@pytest.fixture(scope="module")
def model() -> ProbedModel:
    return open_model(NANO, np.float32)


def _tokens(kind: str, count: int) -> list[int]:
    text = (ROOT / "examples" / "heldout" / f"{kind}.txt").read_text()[: 8 * count]
    return Tokenizer(NANO).encode(text)[:count]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads((ROOT / "bench" / "results" / "k3-nano-quality.json").read_text())


def test_packed_and_unpacked_experts_give_the_same_bits() -> None:
    assert not packing_matters(NANO, _tokens("code", 12))


@pytest.mark.slow
def test_mlx_lm_says_the_same(model: ProbedModel) -> None:
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed (extra: oracle)")
    from tests.oracles.mlx_oracle import MlxOracle

    oracle, prompt = MlxOracle(NANO), _tokens("prose", 24)
    cache, other = model.new_cache(), oracle.new_cache()
    want, rows = greedy(lambda tokens: model.forward(tokens, cache), prompt, 12)
    got, _ = greedy(lambda tokens: oracle.forward(tokens, other), prompt, 12)
    found = parting(want, rows, got)
    assert found["equal_tokens"] == 12 or (found["equal_tokens"] > 4 and found["margin"] < TIE)


@pytest.mark.slow
def test_the_draft_saves_steps_of_the_reference(model: ProbedModel) -> None:
    def continued(prompt: list[int]) -> list[int]:
        cache = model.new_cache()
        return greedy(lambda tokens: model.forward(tokens, cache), list(prompt), 30)[0]

    accepted = draft_steps(model, open_draft(DRAFT, model), continued, [_tokens("code", 64)])
    assert sum(n + 1 for n in accepted) >= 22
    assert sum(accepted) / len(accepted) > 0.5


def test_probing_gates_and_router(model: ProbedModel) -> None:
    found = gates_and_router(model, [_tokens("code", 128)])
    assert len(found["heads"]) == 40 and len(found["experts"]) == 13
    assert all(abs(sum(head["shares"]) - 1) < 1e-3 for head in found["heads"])
    means = [head["mean"] for head in found["heads"]]
    assert min(means) < 0.1 and max(means) > 0.5


def test_recorded_predictions(record: dict[str, Any]) -> None:
    """Below both baselines, and better with more context in front of the same tokens."""
    for kind in KINDS:
        own, base = record["predictions"][kind], record["baselines"][kind]
        assert record["training"][kind]["bits_per_byte"] < base["kneser_ney_5gram_first"]
        assert record["training"][kind]["bits_per_byte"] < base["xz_9_all"]
        losses = list(own["loss_by_context"].values())
        assert losses[0] > losses[1] > losses[3]


def test_recorded_behaviour(record: dict[str, Any]) -> None:
    experts = record["behaviour"]["experts"]
    assert all(row["used"] == 32 and row["busiest_over_mean"] < 2 for row in experts)
    means = [head["mean"] for head in record["behaviour"]["heads"]]
    assert min(means) < 0.05 and max(means) > 0.8
    assert record["packing"]["equal_bits"] is True
    assert record["draft"]["code"]["tokens_per_step"] > 2.5
    for kind in KINDS:
        for found in (record["equal_outputs"][kind][name] for name in ("cpu", "mlx_lm")):
            assert found["equal_tokens"] == 128 or found["margin"] < TIE
