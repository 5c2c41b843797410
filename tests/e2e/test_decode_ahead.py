"""Decode launches made before the former tokens are read: the same tokens, stops and prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from k3compiler.runtime.decode_loop import DecodeLoop
from k3compiler.runtime.engine import Engine
from k3compiler.runtime.sampling import SamplingParams
from tests.e2e.conftest import Engines
from tests.e2e.models import Model, Models

pytestmark = [pytest.mark.t1, pytest.mark.slow]
UNIT = 64


class Counting:
    """The engine's decode loop, its launches counted, made ahead where that is asked for."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.num_ahead = engine, 0
        self._loop = engine._runner._decodes
        launch = DecodeLoop._launch

        def counted(loop: DecodeLoop, rows: np.ndarray, ahead: int) -> object:
            self.num_ahead += ahead
            return launch(loop, rows, ahead)

        monkeypatch.setattr(DecodeLoop, "_launch", counted)

    def generate(
        self, prompts: list[list[int]], params: list[SamplingParams], *, ahead: bool
    ) -> list[tuple[tuple[int, ...], str]]:
        self.engine.cache.reset_prefixes()
        self.num_ahead, self._loop.runs_ahead = 0, ahead
        found = self.engine.generate(prompts, params)
        self.engine.cache.check_integrity()
        return [(done.tokens, done.finish_reason) for done in found]


@pytest.fixture(scope="module")
def model(models: Models) -> Model:
    return models.tiny("spec")


@pytest.fixture
def counting(model: Model, engines: Engines, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    yield Counting(engines.of(model), monkeypatch)
    engines.of(model)._runner._decodes.runs_ahead = False


def _requests(model: Model) -> tuple[list[list[int]], list[SamplingParams]]:
    prompts = [model.tokens[31 * i : 31 * i + 10 + 17 * i] for i in range(6)]
    drawn = SamplingParams(temperature=0.7, top_k=40, top_p=0.9, seed=3, ignore_eos=True)
    greedy = SamplingParams(ignore_eos=True)
    params = [
        replace(greedy if i % 3 == 0 else drawn, max_tokens=24 + 9 * i) for i in range(len(prompts))
    ]
    return prompts, params


def test_the_same_tokens_and_stops(model: Model, counting: Counting) -> None:
    prompts, params = _requests(model)
    plain = counting.generate(prompts, params, ahead=False)
    assert counting.num_ahead == 0
    stops = [(tokens[len(tokens) // 2],) for tokens, _ in plain]
    params = [
        replace(p, stop_ids=stop) if i % 2 else p
        for i, (p, stop) in enumerate(zip(params, stops, strict=True))
    ]
    plain = counting.generate(prompts, params, ahead=False)
    ahead = counting.generate(prompts, params, ahead=True)
    assert ahead == plain
    assert counting.num_ahead > 20
    assert {reason for _, reason in ahead} == {"stop", "length"}


def test_a_stop_on_a_unit_boundary_hands_on_the_state_of_before(
    model: Model, counting: Counting
) -> None:
    """The launch ahead wrote the live state past the boundary; the prefix index gets the copy."""
    engine, params = counting.engine, SamplingParams(max_tokens=12, ignore_eos=True)
    for length in range(UNIT - 3, UNIT - 12, -1):
        prompt = model.tokens[7 : 7 + length]
        ((tokens, _),) = counting.generate([prompt], [params], ahead=False)
        fed = UNIT - length
        if tokens[fed] not in tokens[:fed]:
            break
    else:
        pytest.fail("no prompt whose stop token is new")
    stop = replace(params, stop_ids=(tokens[fed],))
    ((found, reason),) = counting.generate([prompt], [stop], ahead=True)
    assert (found, reason) == (tokens[:fed], "stop")
    assert counting.num_ahead >= fed
    again = [*prompt, *found, *model.tokens[:9]]
    (warm,) = engine.generate([again], params)
    assert warm.num_cached_tokens == UNIT
    ((cold, _),) = counting.generate([again], [params], ahead=False)
    assert warm.tokens == cold


def test_a_stream_left_early_leaks_nothing(model: Model, counting: Counting) -> None:
    engine, params = counting.engine, SamplingParams(max_tokens=40, ignore_eos=True)
    prompt = model.tokens[:50]
    plain = counting.generate([prompt], [params], ahead=False)
    counting.num_ahead, engine._runner._decodes.runs_ahead = 0, True
    for taken in (2, 14, 15, 16):
        stream = engine.stream([prompt], params)
        for _ in range(taken):
            next(stream)
        stream.close()  # type: ignore[attr-defined]
        engine.cache.check_integrity()
        assert engine.cache.pages.num_free == engine.cache.pages.num_usable
    assert counting.num_ahead > 20
    assert counting.generate([prompt], [params], ahead=True) == plain
