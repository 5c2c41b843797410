"""The example checkpoint: compiled, it says what the reference says."""

from __future__ import annotations

import numpy as np
import pytest

from k3compiler.runtime.sampling import SamplingParams
from tests.e2e.conftest import Engines, K3c
from tests.e2e.models import Models, assert_agrees

pytestmark = [pytest.mark.t1, pytest.mark.slow]

PROMPT = "The moon is"
NUM_NEW = 16


@pytest.fixture(scope="module")
def continuation(models: Models, engines: Engines) -> tuple[list[int], list[int]]:
    """The prompt's ids and the reference's greedy continuation in float64 with a cache, up to a near tie."""
    nano = models.nano()
    prompt = engines.of(nano).tokenizer.encode(PROMPT)
    cache = nano.reference.new_cache()
    row = nano.reference.forward(prompt, cache)[-1]
    chosen: list[int] = []
    for _ in range(NUM_NEW):
        second, first = np.sort(row)[-2:]
        if first - second < 2e-3:
            break
        chosen.append(int(row.argmax()))
        row = nano.reference.forward([chosen[-1]], cache)[-1]
    assert len(chosen) > 4, "a tie: this prompt cannot tell right from wrong"
    return prompt, chosen


def test_greedy_generation_is_the_reference_s(
    models: Models, engines: Engines, continuation: tuple[list[int], list[int]]
) -> None:
    prompt, want = continuation
    engine = engines.of(models.nano())
    params = SamplingParams(max_tokens=len(want), ignore_eos=True)
    (done,) = engine.generate(PROMPT, params)
    assert done.prompt_tokens == tuple(prompt)
    assert list(done.tokens) == want
    assert done.text == engine.tokenizer.decode(want)


def test_streamed_text_is_the_generated_text(models: Models, engines: Engines) -> None:
    engine = engines.of(models.nano())
    params = SamplingParams(max_tokens=NUM_NEW, temperature=0.9, top_p=0.9, seed=11)
    (done,) = engine.generate(PROMPT, params)
    events = list(engine.stream(PROMPT, params))
    assert "".join(event.text for event in events) == done.text
    assert [e.token for e in events if e.token is not None] == list(done.tokens)


def test_the_command_prints_the_continuation(
    models: Models,
    continuation: tuple[list[int], list[int]],
    k3c: K3c,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nano, (_, want) = models.nano(), continuation
    command = ["generate", nano.package, "--weights", nano.checkpoint, "--prompt", PROMPT]
    assert k3c(*command, "--max-tokens", len(want), "--ids") == 0
    printed = [int(word) for word in capsys.readouterr().out.split()]
    assert printed == want[: len(printed)] and printed


def test_logits(models: Models, engines: Engines) -> None:
    nano = models.nano()
    engine, tokens = engines.of(nano), nano.tokens[:129]
    want = nano.reference.forward(tokens)
    for chunks in (None, [7], [64, 63, 1]):
        assert_agrees(engine.logits(tokens, chunks=chunks), want)
