"""The trained draft in the engine: fewer steps, the same tokens, through hits, preemption and aborts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from k3compiler.errors import K3Error
from k3compiler.runtime.dspark import DSparkDrafter
from k3compiler.runtime.engine import Engine
from k3compiler.runtime.sampling import SamplingParams
from k3compiler.runtime.speculation import Known
from tests.e2e.conftest import K3c
from tests.e2e.models import DRAFT, NANO, TEXT, Make, Model, Models

pytestmark = [pytest.mark.t1, pytest.mark.slow]

GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
Drafts = list[tuple[int, list[int]]]  # (tokens known, proposed)


@pytest.fixture(scope="module")
def text(nano: Model) -> list[int]:
    """Held-out code, as tokens."""
    from k3compiler.runtime.tokenizer import Tokenizer

    return Tokenizer(nano.checkpoint, vocab_size=nano.vocab_size).encode(TEXT)[:900]


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> Drafts:
    """Everything that draft models propose from now on."""
    made: Drafts = []
    propose = DSparkDrafter.propose

    def recording(
        self: DSparkDrafter, known: Sequence[Known], most: Sequence[int]
    ) -> list[list[int]]:
        found = propose(self, known, most)
        made.extend((len(k.tokens), tokens) for k, tokens in zip(known, found, strict=True))
        return found

    monkeypatch.setattr(DSparkDrafter, "propose", recording)
    return made


def tokens_per_step(engine: Engine) -> float:
    """Tokens that a verify chose, the target's own included."""
    counts = engine.metrics()
    drafted, accepted = (
        counts[f"spec_decode_num_{kind}_tokens_total"] for kind in ("draft", "accepted")
    )
    return 1 + 7 * accepted / drafted


def test_greedy_output_is_the_same_with_the_draft(text: list[int], make: Make) -> None:
    """Three requests at once and one of a single token; most steps bring more than one token."""
    prompts = [text[:100], text[200:263], text[400:401]]
    expected = [done.tokens for done in make().generate(prompts, GREEDY)]
    engine = make(draft=DRAFT)
    assert [done.tokens for done in engine.generate(prompts, GREEDY)] == expected
    assert tokens_per_step(engine) > 1.5, "a draft that reads nothing is right now and then"
    engine.cache.check_integrity()


def test_what_a_hit_brings_is_drafted_from(text: list[int], make: Make, drafts: Drafts) -> None:
    """A draft's rows lie in the cache's pages: after a hit it proposes what it would without."""
    prompt = text[:150]
    engine = make(draft=DRAFT)
    engine.generate(prompt, GREEDY)
    cold = list(drafts)
    drafts.clear()
    (warm,) = engine.generate(prompt, GREEDY)
    assert warm.num_cached_tokens == 128 and drafts == cold
    drafts.clear()
    engine.cache.reset_prefixes()
    (again,) = engine.generate(prompt, GREEDY)
    assert again.num_cached_tokens == 0 and drafts == cold


def test_rows_come_back_from_host_memory(text: list[int], make: Make, drafts: Drafts) -> None:
    engine = make(draft=DRAFT, num_pages=9, max_sequences=2, memory="static", host_bytes=2**26)
    first, second = text[:330], text[400:730]
    engine.generate(first, GREEDY)
    cold = list(drafts)
    engine.generate(second, SamplingParams(max_tokens=1))
    drafts.clear()
    (back,) = engine.generate(first, GREEDY)
    assert back.num_cached_tokens == 320 and drafts == cold


def test_preempted_and_resumed_with_the_draft(text: list[int], make: Make) -> None:
    """Pages for two and a half sequences, three of which grow at once."""
    prompts = [text[i : i + 58] for i in range(0, 150, 50)]
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    expected = [done.tokens for done in make().generate(prompts, params)]
    engine = make(draft=DRAFT, draft_tokens=3, num_pages=6, memory="static")
    assert [done.tokens for done in engine.generate(prompts, params)] == expected
    assert engine.metrics()["num_preemptions_total"] > 0
    engine.cache.check_integrity()


def test_aborts_leak_nothing_with_the_draft(text: list[int], make: Make) -> None:
    engine = make(draft=DRAFT, num_pages=20)
    for turn in range(3):
        prompts = [text[turn * 20 : turn * 20 + n] for n in (30, 64)]
        stream = engine.stream(prompts, GREEDY)
        for _ in range(2 + 4 * turn):
            next(stream)
        stream.close()  # type: ignore[attr-defined]
        engine.cache.check_integrity()
        assert not engine.scheduler.has_work
    assert engine.cache.pages.num_free == engine.cache.pages.num_usable
    expected = make().generate(text[:100], GREEDY)
    assert [d.tokens for d in engine.generate(text[:100], GREEDY)] == [d.tokens for d in expected]


def test_sampled_output_is_the_same_with_the_draft(text: list[int], make: Make) -> None:
    params = SamplingParams(max_tokens=12, temperature=0.8, top_p=0.95, seed=3, ignore_eos=True)
    engine = make(draft=DRAFT)
    (expected,), (found,) = make().generate(text[:80], params), engine.generate(text[:80], params)
    assert found.tokens == expected.tokens and tokens_per_step(engine) > 1


def test_a_draft_of_another_model_is_refused(models: Models) -> None:
    tiny = models.tiny("spec")
    with pytest.raises(K3Error, match="K3-G007"):
        Engine(tiny.package, tiny.checkpoint, draft=DRAFT)


def test_generate_takes_the_draft(
    nano: Model, k3c: K3c, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    base = ["generate", nano.package, "--weights", NANO, "--prompt", TEXT[:200], "--max-tokens", 12]
    assert k3c(*base) == 0
    plain = capsys.readouterr().out
    assert k3c(*base, "--draft", DRAFT) == 0
    assert capsys.readouterr().out == plain
    assert k3c(*base, "--draft", tmp_path) != 0
    assert "K3-G005" in capsys.readouterr().err
    assert k3c(*base, "--stop-id", 9999) != 0
    assert "stop_ids" in capsys.readouterr().err
