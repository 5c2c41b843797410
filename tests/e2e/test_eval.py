"""``k3c eval`` on held-out text: the reference's score, and one that only a trained model has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3compiler.check.eval import evaluate_tokens
from tests.e2e.conftest import Engines, K3c
from tests.e2e.models import Models

pytestmark = [pytest.mark.t1, pytest.mark.slow]

HELD_OUT = Path(__file__).parents[2] / "examples" / "heldout"
WINDOW, TOKENS = 96, 150


@pytest.mark.parametrize("name", ["code", "prose"])
def test_the_score_is_the_reference_s(
    name: str,
    models: Models,
    engines: Engines,
    k3c: K3c,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nano, text = models.nano(), HELD_OUT / f"{name}.txt"
    command = ["eval", nano.package, "--weights", nano.checkpoint, "--text", text]
    assert k3c(*command, "--window", WINDOW, "--max-tokens", TOKENS, "--json") == 0
    got = json.loads(capsys.readouterr().out)
    tokenizer = engines.of(nano).tokenizer
    tokens = tokenizer.encode(text.read_text())[:TOKENS]
    want = evaluate_tokens(
        lambda part: nano.reference.forward(list(part)), tokens, tokenizer.token_bytes, WINDOW
    )
    assert got["num_tokens"] == TOKENS - 1 and got["num_windows"] == 2
    assert got["num_bytes"] == want.num_bytes
    assert got["bits_per_byte"] == pytest.approx(want.bits_per_byte, rel=1e-4)
    assert got["bits_per_byte"] < 1.5  # the same choice for every token: 4.4 and 2.8
    losses = [row["loss"] for row in got["by_position"]]
    assert losses == pytest.approx([row.loss for row in want.by_position], rel=1e-3)


def test_the_excerpts_stay_small() -> None:
    assert sum(path.stat().st_size for path in HELD_OUT.iterdir()) <= 200_000
