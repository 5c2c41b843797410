"""One request alone, beside others, cut elsewhere, in segments: the same bits, or 1e-4 (design, section 6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from k3compiler.runtime.cache.engine_cache import SequenceCache
from k3compiler.runtime.engine import Engine
from k3compiler.runtime.sampling import SamplingParams
from k3compiler.runtime.step import SeqChunk
from tests.e2e.conftest import Engines
from tests.e2e.models import Floats, Model, Models, assert_agrees, max_difference

pytestmark = [pytest.mark.t1, pytest.mark.slow]


@pytest.fixture(scope="module", params=["spec", "odd"])
def model(models: Models, request: pytest.FixtureRequest) -> Model:
    return models.tiny(str(request.param))


@pytest.fixture
def engine(model: Model, engines: Engines) -> Engine:
    return engines.of(model)


@pytest.mark.parametrize("chunks", [[64], [128, 64, 192], [448, 52], [320]])
def test_cuts_on_the_kda_grid_change_no_bit(
    model: Model, engine: Engine, chunks: list[int]
) -> None:
    whole = engine.logits(model.tokens)
    assert np.array_equal(engine.logits(model.tokens, chunks=chunks), whole)


@pytest.mark.parametrize("chunks", [[7], [63, 1, 65], [1], [129, 1]])
def test_other_cuts_change_little(model: Model, engine: Engine, chunks: list[int]) -> None:
    """1e-4, but for one logit in a thousand: float32 numpy is itself 6e-5 from float64 at 500 tokens here."""
    difference = np.abs(engine.logits(model.tokens, chunks=chunks) - engine.logits(model.tokens))
    assert 0 < np.quantile(difference, 0.999) <= 1e-4
    assert difference.max() <= 3e-4


def test_a_batch_gives_the_bits_of_each_request_alone(model: Model, engine: Engine) -> None:
    """Ragged prefill of three, then decode of three, every logit."""
    prompts = [model.tokens[:65], model.tokens[100:101], model.tokens[200:397]]
    tails = [model.tokens[400:406], model.tokens[410:416], model.tokens[420:426]]
    together = _together(engine, prompts, tails)
    for prompt, tail, found in zip(prompts, tails, together, strict=True):
        (alone,) = _together(engine, [prompt], [tail])
        assert np.array_equal(found, alone)
    whole = engine.logits([*prompts[2], *tails[2]], chunks=[len(prompts[2]), 1])
    assert np.array_equal(together[2], whole)
    engine.cache.check_integrity()


def _together(
    engine: Engine, prompts: Sequence[list[int]], tails: Sequence[list[int]]
) -> list[Floats]:
    """Logits of every request, all in one prefill step and then in common decode steps."""
    caches: list[SequenceCache] = []
    for prompt, tail in zip(prompts, tails, strict=True):
        cache = engine.cache.open(len(prompt) + len(tail))
        assert cache is not None
        caches.append(cache)
    try:
        rows = [_step(engine, caches, list(prompts))]
        rows += [_step(engine, caches, [[t] for t in step]) for step in zip(*tails, strict=True)]
    finally:
        for cache in caches:
            engine.cache.close(cache)
    return [np.concatenate(parts) for parts in zip(*rows, strict=True)]


def _step(
    engine: Engine, caches: Sequence[SequenceCache], new: Sequence[list[int]]
) -> list[Floats]:
    chunks: list[SeqChunk] = []
    for cache, ids in zip(caches, new, strict=True):
        engine.cache.grow(cache, cache.context_tokens + len(ids))
    for cache, ids in zip(caches, new, strict=True):
        chunks.append(SeqChunk(ids, cache.context_tokens, cache.slot, cache.pages, "all"))
    is_decode = caches[0].context_tokens > 0
    run = engine.executor.decode if is_decode else engine.executor.prefill
    logits = run(chunks, want_logits=True).logits
    assert logits is not None
    for cache, ids in zip(caches, new, strict=True):
        cache.context_tokens += len(ids)
    ends = np.cumsum([len(ids) for ids in new])
    return np.split(logits, ends[:-1])


def test_generation_in_a_crowd(model: Model, engine: Engine) -> None:
    """More requests than fit at once, prompts cut by the token budget: each has its own tokens."""
    cuts = [(0, 300), (5, 6), (17, 81), (90, 154), (3, 250), (40, 41)]
    prompts = [model.tokens[a:b] for a, b in cuts]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    alone = [engine.generate(prompt, params)[0].tokens for prompt in prompts]
    together = [done.tokens for done in engine.generate(prompts, params)]
    assert together == alone
    assert len(set(alone)) > 1
    engine.cache.check_integrity()


@pytest.mark.parametrize("segment_chunks", [1, 3])
def test_segments_agree_with_one_segment(
    model: Model, engine: Engine, engines: Engines, segment_chunks: int
) -> None:
    """A prefill of eight chunks as eight segments, or as three, from a fresh and from a used state."""
    parted = engines.of(model, segment_chunks=segment_chunks)
    for chunks in ([500], [64, 436], [7, 493]):
        whole = engine.logits(model.tokens, chunks=chunks)
        found = parted.logits(model.tokens, chunks=chunks)
        assert 0 < max_difference(found, whole) <= 1e-4, "other sums, the same numbers"
        assert_agrees(found, model.reference_logits)
