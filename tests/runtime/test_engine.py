"""The engine end to end on the sample package: logits, batches, streams, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3compiler.errors import K3Error
from k3compiler.package.manifest import CollectiveStep, ParallelRecord, Plan, TargetRecord
from k3compiler.package.reader import Package
from k3compiler.package.writer import PackageWriter
from k3compiler.runtime.device.null import NullDevice
from k3compiler.runtime.engine import Engine
from k3compiler.runtime.sampler import sample
from k3compiler.runtime.sampling import SamplingParams
from k3compiler.runtime.step import SamplerRow
from tests.package import package_samples as samples
from tests.runtime.conftest import Floats, TensorTable


@pytest.fixture(params=["native", "interpret"])
def engine(
    host_package: Path, checkpoint: TensorTable, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    engine = Engine(
        host_package,
        checkpoint,
        max_context=256,
        max_sequences=3,
        prefill_tokens=64,
        num_threads=2,
        poison=True,
        interpret=request.param == "interpret",
    )
    yield engine
    engine.close()


def _greedy(expected: Floats, prompt: list[int], count: int) -> tuple[int, ...]:
    tokens = [prompt[-1]]
    for _ in range(count):
        tokens.append(int(expected[tokens[-1]].argmax()))
    return tuple(tokens[1:])


@pytest.mark.parametrize("chunks", [None, [7], [20, 1, 1], [1], [64, 36]])
def test_logits(engine: Engine, expected_logits: Floats, chunks: list[int] | None) -> None:
    tokens = np.random.default_rng(3).integers(0, samples.VOCAB, 100).tolist()
    found = engine.logits(tokens, chunks=chunks)
    assert found.shape == (100, samples.VOCAB) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected_logits[tokens], rtol=1e-5, atol=1e-5)
    engine.cache.check_integrity()
    assert engine.cache.slots.num_free == 3


def test_batches_give_what_single_prompts_give(engine: Engine, expected_logits: Floats) -> None:
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, samples.VOCAB, n).tolist() for n in (1, 130, 64, 3, 65)]
    limits = [SamplingParams(max_tokens=n) for n in (5, 1, 9, 3, 7)]
    found = engine.generate(prompts, limits)
    for completion, prompt, limit in zip(found, prompts, limits, strict=True):
        assert completion.prompt_tokens == tuple(prompt)
        assert completion.tokens == _greedy(expected_logits, prompt, limit.max_tokens)
        assert (completion.finish_reason, completion.text) == ("length", None)
    engine.cache.check_integrity()
    assert engine.cache.pages.num_free == engine.cache.pages.num_usable


def test_sampled_tokens_do_not_depend_on_the_batch(engine: Engine, expected_logits: Floats) -> None:
    params = SamplingParams(max_tokens=8, temperature=0.8, top_k=12, top_p=0.9, seed=42)
    alone = engine.generate([5], params)[0]
    others = [[int(i)] * 40 for i in range(4)]
    hot = SamplingParams(max_tokens=20, temperature=2.0, seed=1)
    beside = engine.generate([*others, [5]], [*[hot] * 4, params])[-1]
    assert alone.tokens == beside.tokens
    again, token = [], 5
    for step in range(8):
        token = sample(expected_logits[token], SamplerRow(0.8, 12, 0.9, 42, step))
        again.append(token)
    assert alone.tokens == tuple(again)
    other_seed = SamplingParams(max_tokens=8, temperature=0.8, top_k=12, top_p=0.9, seed=43)
    assert engine.generate([5], other_seed)[0].tokens != alone.tokens


def test_stop_ids_end_a_request_and_are_left_out(engine: Engine, expected_logits: Floats) -> None:
    tokens = _greedy(expected_logits, [5], 6)
    stop = tokens[-1]
    first = tokens.index(stop)
    found = engine.generate([5], SamplingParams(max_tokens=6, stop_ids=(stop,)))[0]
    assert (found.tokens, found.finish_reason) == (tokens[:first], "stop")


def test_stream_yields_each_token_once_and_can_be_left(engine: Engine) -> None:
    params = SamplingParams(max_tokens=4)
    prompts = [[3], [9, 9]]
    events = list(engine.stream(prompts, params))
    for index, completion in enumerate(engine.generate(prompts, params)):
        mine = [e for e in events if e.index == index]
        assert tuple(e.token for e in mine) == completion.tokens
        assert [e.finish_reason for e in mine] == [None, None, None, "length"]
    stream = engine.stream(prompts, params)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not engine.scheduler.has_work
    engine.cache.check_integrity()
    assert engine.cache.pages.num_free == engine.cache.pages.num_usable


def test_one_token_is_a_prefill_unless_a_chunk_of_one_is_asked_for(engine: Engine) -> None:
    prefill, decode = engine.executor.runner("prefill"), engine.executor.runner("decode")
    ran: list[str] = []
    prefill.after_step[0] = lambda r, s: ran.append("prefill")
    decode.after_step[0] = lambda r, s: ran.append("decode")
    engine.logits([4])
    engine.logits([4], chunks=[1])
    assert ran == ["prefill", "decode"]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([[1], []], "empty"),
        ([0, samples.VOCAB], f"0..{samples.VOCAB - 1}"),
        ([-1], "token ids"),
        ([1] * 256, "at most 255"),
        ([1, [2]], "mixed"),
    ],
)
def test_bad_prompts(engine: Engine, prompt: Any, message: str) -> None:
    with pytest.raises(K3Error, match="K3-R003") as caught:
        engine.generate(prompt)
    assert message in str(caught.value)


def test_text_needs_a_tokenizer(engine: Engine) -> None:
    with pytest.raises(K3Error, match="K3-R008"):
        engine.generate("hello")


@pytest.mark.parametrize("chunks", [[], [0], [300, 1]])
def test_bad_chunks(engine: Engine, chunks: list[int]) -> None:
    with pytest.raises(K3Error, match="K3-R005"):
        engine.logits([1, 2, 3], chunks=chunks)


def test_prompt_that_can_never_run(host_package: Path, checkpoint: TensorTable) -> None:
    engine = Engine(host_package, checkpoint, max_context=256, num_pages=3, num_threads=1)
    assert engine.generate([1] * 100, SamplingParams(max_tokens=28))
    with pytest.raises(K3Error, match="K3-R003"):
        engine.generate([1] * 100, SamplingParams(max_tokens=29))
    engine.close()


@pytest.mark.parametrize(
    "options",
    [
        {"max_context": 1},
        {"max_context": 5000},
        {"max_sequences": 0},
        {"prefill_tokens": 63},
        {"segment_chunks": 0},
        {"num_threads": 0},
    ],
)
def test_bad_options(host_package: Path, checkpoint: TensorTable, options: dict[str, int]) -> None:
    with pytest.raises(K3Error, match="K3-R005"):
        Engine(host_package, checkpoint, **options)  # type: ignore[arg-type]


def test_package_of_another_target(tmp_path: Path, checkpoint: TensorTable) -> None:
    samples.write_sample(tmp_path / "pkg", target=TargetRecord("gb300", "cuda", "sm_103a"))
    with pytest.raises(K3Error, match="K3-K009"):
        Engine(tmp_path / "pkg", checkpoint, device="cpu")
    samples.write_sample(tmp_path / "amd", target=TargetRecord("mi355x", "hip", "gfx950"))
    for device in (None, "tpu", "cuda:x"):
        with pytest.raises(K3Error, match="K3-R006"):
            Engine(tmp_path / "amd", checkpoint, device=device)


def test_package_without_a_library_for_this_cpu(tmp_path: Path, checkpoint: TensorTable) -> None:
    samples.write_sample(tmp_path / "pkg")
    with pytest.raises(K3Error, match="K3-R006"):
        Engine(tmp_path / "pkg", checkpoint)


def test_library_that_is_none(tmp_path: Path, checkpoint: TensorTable) -> None:
    libraries = {"x86-64-v3": "lib/x86-64-v3.so"}
    samples.write_sample(tmp_path / "pkg", {"lib/x86-64-v3.so": b"junk"}, libraries=libraries)
    with pytest.raises(K3Error, match="K3-R009"):
        Engine(tmp_path / "pkg", checkpoint)


def test_several_ranks_are_refused(tmp_path: Path, checkpoint: TensorTable) -> None:
    samples.write_sample(tmp_path / "pkg", parallel=ParallelRecord(8, 8))
    with pytest.raises(K3Error, match="K3-R007"):
        Engine(tmp_path / "pkg", checkpoint, device="null")


def test_collectives_of_one_rank_are_the_identity(tmp_path: Path) -> None:
    """They leave no trace in the launches, in whatever place they stand."""
    base = samples.plan("prefill")
    reduce = CollectiveStep("all_reduce", ("x",), "T*8", "tp", "comm.all_reduce", 0)
    steps = (base.steps[0], reduce, base.steps[1])
    with PackageWriter(tmp_path / "pkg") as writer:
        data = base.to_json() | {"steps": [s.to_json() for s in map(_StepJson, steps)]}
        writer.add_json("plans/prefill.json", data)
        writer.add_plan(samples.plan("decode"))
        writer.add_weights(samples.weights())
        writer.commit(samples.manifest())
    package = Package.open(tmp_path / "pkg")
    assert package.plan("prefill").steps == steps
    engine = Engine(package, None, device="null")
    engine.logits([1, 2, 3])
    device = engine.executor.device
    assert isinstance(device, NullDevice)
    assert [launch["symbol"] for launch in device.launches] == ["embed", "head"]


class _StepJson:
    def __init__(self, step: Any) -> None:
        self._step = step

    def to_json(self) -> Any:
        plan = samples.plan("decode")
        return Plan(plan.phase, (), (), (), (), (self._step,)).to_json()["steps"][0]


def test_null_device_records_launches(tmp_path: Path) -> None:
    samples.write_sample(tmp_path / "pkg", target=TargetRecord("gb300", "cuda", "sm_103a"))
    engine = Engine(tmp_path / "pkg", None, device="null", max_context=128)
    device = engine.executor.device
    assert isinstance(device, NullDevice)
    engine.logits([1] * 70, chunks=[69, 1])
    grids = [(launch["symbol"], launch["grid"]) for launch in device.launches]
    assert grids == [
        ("embed", (69, 1, 1)),
        ("head", (69, 4, 1)),
        ("feed", (1, 1, 1)),
        ("embed", (1, 1, 1)),
        ("head", (1, 4, 1)),
    ]
    args = device.launches[0]["args"]
    assert args["T"] == 69
    assert args["scale"] == int(np.float32(1.5).view(np.int32))
    assert args["x"] == device.launches[1]["args"]["x"], "both kernels see one buffer"


def test_weights_are_needed_on_a_device(host_package: Path) -> None:
    with pytest.raises(K3Error, match="K3-R005"):
        Engine(host_package, None)
