"""Whole decode steps of one rank on random memory: the tables, the floor's bytes, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3compiler.check.step import StepBench, StepPoint, bench_steps
from k3compiler.check.step.floor import expected_experts, step_traffic
from k3compiler.check.step.memory import SCALE_BYTES, RandomFill
from k3compiler.cli import main as cli
from k3compiler.driver import compile_model
from k3compiler.errors import K3Error
from k3compiler.package.expr import evaluate
from k3compiler.package.manifest import LaunchStep
from k3compiler.package.reader import Package
from k3compiler.reference.random_checkpoint import make_checkpoint
from k3compiler.reference.tiny import spec_tiny
from k3compiler.runtime.device.base import TensorRef
from k3compiler.runtime.device.null import NullDevice

pytestmark = pytest.mark.t1


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Two ranks' share of a KDA layer with a dense FFN, one with experts, and an MLA layer with experts."""
    root = tmp_path_factory.mktemp("step")
    config = replace(spec_tiny(), num_layers=3, mla_layers=(2,))
    make_checkpoint(root / "model", config, 3)
    path = compile_model(str(root / "model"), target="cpu", tp=2, ep=2, out=root / "package")
    return Package.open(path)


@pytest.fixture(scope="module")
def bench(package: Package) -> StepBench:
    points = [StepPoint(1, 70), StepPoint(3, 10)]
    return bench_steps(package, points, rank=1, seed=2)


def test_a_step_and_its_kernels(package: Package, bench: StepBench) -> None:
    assert [(row.batch, row.context) for row in bench.steps] == [(1, 70), (3, 10)]
    every = [s for s in package.plan("decode").steps if isinstance(s, LaunchStep)]
    for row in bench.steps:
        assert row.finite
        sizes = dict.fromkeys("TSR", row.batch) | {"P": -(-(row.context + 1) // 64), "rank": 1}
        launches = [s for s in every if all(evaluate(n, sizes) for n in s.grid)]
        assert row.launches == len(launches)
        assert row.ratio == pytest.approx(row.ms / row.floor_ms, rel=0.05)
        mine = [k for k in bench.kernels if k.batch == row.batch]
        assert {k.kernel for k in mine} == {s.launch for s in launches}
        ops = [o for o in bench.ops if o.batch == row.batch]
        assert sum(o.ms for o in ops) == pytest.approx(row.kernels_ms, abs=1e-2)
        assert sum(o.launches for o in ops) == len(launches)
        layers = [n for n in bench.layers if n.batch == row.batch]
        assert sum(n.count * n.launches for n in layers) == len(launches)


def test_the_floor_is_the_weights_once_and_the_caches(package: Package) -> None:
    """By hand: every parameter of this rank, of the table 3 rows, of its 5 experts those that are chosen."""
    config = package.manifest.config
    traffic = step_traffic(package, batch=3, context=10, experts={1: 2, 2: 2})
    item, whole = 4, 0
    for param in package.weights.params:
        size = int(np.prod(param.shape)) * (1 if param.dtype == "i8" else item)
        if param.name == "embed_tokens":
            size = 3 * config.hidden_dim * item
        elif ".experts." in param.name:
            size = size * 2 // 5
        whole += size
    assert traffic.weight_bytes == whole
    heads, kda = config.kda.num_heads // 2, 2
    state = heads * 16 * 16 * 4 + 3 * 3 * heads * 16 * item
    row = (config.mla.kv_lora_rank + config.mla.rope_dim) * item
    assert traffic.cache_bytes == 3 * (kda * 2 * state + row * (11 + 1))


def test_experts_that_nobody_counted_are_expected(package: Package) -> None:
    assert expected_experts(package, 5, 1) == pytest.approx(5 * 3 / 10)
    assert expected_experts(package, 5, 1000) == pytest.approx(5)


def test_what_the_collectives_would_carry(bench: StepBench) -> None:
    """Of three rows in f32: three mixers' and three FFNs' sums of 64 columns, two latents of 32; 211 ids stay whole."""
    found = {(r.collective, r.bytes_each): r.count for r in bench.collectives if r.batch == 3}
    assert found[("all_reduce", 3 * 64 * 4)] == 3 + 3
    assert found[("all_reduce", 3 * 32 * 4)] == 2
    assert len(found) == 2


def test_what_does_not_fit_is_refused_with_the_numbers(package: Package) -> None:
    with pytest.raises(K3Error) as caught:
        bench_steps(package, [StepPoint(64, 1 << 30)])
    assert caught.value.code == "K3-R013"
    assert "caches" in caught.value.found


def test_no_such_rank(package: Package) -> None:
    with pytest.raises(K3Error, match="K3-R005"):
        bench_steps(package, [StepPoint(1, 1)], rank=2)


@pytest.mark.parametrize(("kind", "low", "high"), [("bytes", 0, 256), ("scales", *SCALE_BYTES)])
def test_bytes_are_valid(kind: Any, low: int, high: int) -> None:
    device = NullDevice()
    ref = TensorRef(device.allocate(3000), "i8", (3, 1000))
    RandomFill.of(device, 1).fill(ref, kind)
    found = np.unique(device.tensor(ref))
    assert low <= found.min() <= found.max() < high
    assert len(found) > min(high - low, 200) * 0.9


def test_the_command(package: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    arguments = ["bench", str(package.path), "--random-weights", "--rank", "0", "--batch", "2"]
    with pytest.raises(SystemExit) as leaving:
        cli.main([*arguments, "--context", "5", "-o", str(out)])
    assert leaving.value.code == 0
    text = capsys.readouterr().out
    assert "floor ms" in text and "time by op" in text and "launches a layer" in text
    assert "left out: what this rank would give to collectives" in text
    written = json.loads(out.read_text())
    assert [row["batch"] for row in written["steps"]] == [2]
