"""From a tiny model's kernels to a bundle, its measurement on this CPU, and the refusals on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from k3compiler.check.tune import agreement, measure_bundle
from k3compiler.driver import tuning_sources
from k3compiler.errors import K3Error
from k3compiler.package.reader import Package
from k3compiler.package.tuning import MeasuredShape, Timing, read_tune_list
from k3compiler.runtime.device.cpu import CpuDevice
from k3compiler.targets.tuning.prepare import decode_buckets, prepare

pytestmark = pytest.mark.t2
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Two candidates of one product of k3-nano."""
    model = str(ROOT / "examples" / "k3-nano")
    template, sources = tuning_sources(model, target="cpu", phase="decode")
    source = next(s for s in sources if s.family == "gemm")
    out = tmp_path_factory.mktemp("tune") / "bundle"
    buckets = {"decode": decode_buckets([1, 3], context=8)}
    prepare([source], template, buckets, keep=2, out=out)
    return Package.open(out)


def test_a_bundle_is_a_package_of_candidates(bundle: Package) -> None:
    (shape,) = read_tune_list(bundle).shapes
    assert shape.family == "gemm" and set(shape.buckets) == {"1", "3"}
    assert shape.candidates[0].symbol == shape.present and len(shape.candidates) == 2
    assert {c.symbol for c in shape.candidates} == {k.symbol for k in bundle.manifest.kernels}
    assert all(us > 0 for c in shape.candidates for us in c.predicted_us.values())


def test_candidates_are_checked_and_timed(bundle: Package) -> None:
    result = measure_bundle(bundle, device=CpuDevice(num_threads=1))
    (shape,) = result.shapes
    assert result.target == "cpu" and result.facts["chip"] and result.facts["date"]
    for timing in shape.timings:
        assert timing.passed and timing.error is not None and timing.error < 1e-5
        assert set(timing.us) == {"1", "3"} and min(timing.us.values()) > 0


def test_what_the_time_did_not_reach_is_named(bundle: Package) -> None:
    result = measure_bundle(bundle, device=CpuDevice(num_threads=1), seconds=0)
    assert result.shapes == () and len(result.unreached) == 1


def test_a_package_is_no_bundle(bundle: Package) -> None:
    files = {k: v for k, v in bundle.manifest.files.items() if k != "tune.json"}
    plain = replace(bundle, manifest=replace(bundle.manifest, files=files))
    with pytest.raises(K3Error, match="K3-K022"):
        read_tune_list(plain)


def test_agreement_is_one_for_the_same_order_and_minus_one_for_its_reverse() -> None:
    def shape(us: list[float]) -> MeasuredShape:
        timings = [
            Timing(str(i), "", {}, {"1": float(i)}, {"1": t}, {"1": 0.0}, 0.0, True)
            for i, t in enumerate(us, 1)
        ]
        return MeasuredShape("gemm", "decode", {}, 1, "1", tuple(timings))

    assert agreement([shape([5, 6, 9])]) == 1.0
    assert agreement([shape([5, 6, 9]), shape([9, 6, 5])]) == 0.0
    assert agreement([shape([5, 6])]) is None


def test_tune_list_is_json_of_the_bundle(bundle: Package) -> None:
    data = json.loads(bundle.read("tune.json"))
    assert [s["family"] for s in data["shapes"]] == ["gemm"]
