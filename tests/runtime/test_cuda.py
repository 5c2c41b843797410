"""The CUDA device on the sample package; its kernels are compiled here by NVRTC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3compiler.errors import K3Error
from k3compiler.package.manifest import CallStep, LaunchRecord, TargetRecord
from k3compiler.package.writer import PackageWriter
from k3compiler.runtime.device.cuda import CudaDevice, CudaProgram
from k3compiler.runtime.engine import Engine
from k3compiler.runtime.sampling import SamplingParams
from tests.package import package_samples as samples
from tests.runtime.conftest import Floats, TensorTable

pytestmark = pytest.mark.t3

# One program per block; the last two parameters are Triton's hidden scratch pointers.
SOURCE = r"""
extern "C" __global__ void embed(const int *tokens, const float *table, float *x, int T,
                                 float scale, float *scratch, void *profile) {
    extern __shared__ float staged[];
    int t = blockIdx.x, i = threadIdx.x;
    if (t >= T || i >= 8) return;
    staged[i] = table[tokens[t] * 8 + i];
    scratch[t * 8 + i] = staged[i] * scale;   /* through global scratch, as some kernels do */
    x[t * 8 + i] = scratch[t * 8 + i];
}
extern "C" __global__ void head(const float *x, const int *rows, const float *table,
                                float *logits, int T, int R, void *scratch, void *profile) {
    int r = blockIdx.x, v = blockIdx.y * 8 + threadIdx.x;
    if (threadIdx.x >= 8) return;
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += x[rows[r] * 8 + i] * table[v * 8 + i];
    logits[r * 32 + v] = sum;
}
extern "C" __global__ void feed(const int *record, int *tokens, int *rows, int REC, int T,
                                void *scratch, void *profile) {
    int t = blockIdx.x;
    if (threadIdx.x) return;
    tokens[t] = t < record[0] ? record[record[1 + t]] : 0;
    rows[t] = t;
}
"""


def _cubin(arch: str) -> bytes:
    from cuda.bindings import nvrtc  # pyright: ignore[reportMissingImports]

    def checked(result: tuple[Any, ...]) -> Any:
        assert int(result[0]) == 0, result
        return result[1] if len(result) > 1 else None

    program = checked(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"k.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode()]
    checked(nvrtc.nvrtcCompileProgram(program, len(options), options))
    code = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, code))
    return code


@pytest.fixture(scope="module")
def isa() -> str:
    device = CudaDevice()
    return device.isa


@pytest.fixture(scope="module")
def package(isa: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "pkg"
    files = {"cubin": "kernels/all.cubin"}
    embed, *others = samples.kernels(files)
    embed = replace(
        embed,
        launch=LaunchRecord(
            num_warps=1, shared_bytes=64 << 10, global_scratch_bytes=32, global_scratch_align=16
        ),
    )
    samples.write_sample(
        path,
        {"kernels/all.cubin": _cubin(isa)},
        kernels=(embed, *others),
        target=TargetRecord("here", "cuda", isa),
        decode_buckets=(1, 2, 4),
    )
    return path


@pytest.fixture
def engine(package: Path, checkpoint: TensorTable) -> Iterator[Engine]:
    engine = Engine(package, checkpoint, max_context=256, max_sequences=3, prefill_tokens=64)
    yield engine
    engine.close()


@pytest.mark.parametrize("chunks", [None, [20, 1, 1], [1]])
def test_logits(engine: Engine, expected_logits: Floats, chunks: list[int] | None) -> None:
    tokens = np.random.default_rng(3).integers(0, samples.VOCAB, 100).tolist()
    found = engine.logits(tokens, chunks=chunks)
    np.testing.assert_allclose(found, expected_logits[tokens], rtol=1e-5, atol=1e-5)


def test_decode_is_recorded_once_per_bucket(engine: Engine, expected_logits: Floats) -> None:
    prompts = [[1], [2, 3], [4] * 70]
    found = engine.generate(prompts, SamplingParams(max_tokens=12))
    for completion, prompt in zip(found, prompts, strict=True):
        token, want = prompt[-1], list[int]()
        for _ in range(12):
            token = int(expected_logits[token].argmax())
            want.append(token)
        assert completion.tokens == tuple(want)
    program = engine.executor.runner("decode")._program
    assert isinstance(program, CudaProgram)
    assert {key[0] for key in program._graphs} <= {1, 2, 4}
    assert 4 in {key[0] for key in program._graphs}, "three sequences run in a bucket of four"


def test_gemm_is_a_library_call(
    isa: str, checkpoint: TensorTable, expected_logits: Floats, tmp_path: Path
) -> None:
    plans = {phase: samples.plan(phase) for phase in ("prefill", "decode")}
    embed, _, feed = samples.kernels({"cubin": "kernels/all.cubin"})
    embed = replace(
        embed, launch=LaunchRecord(num_warps=1, shared_bytes=32, global_scratch_bytes=32)
    )
    with PackageWriter(tmp_path / "pkg") as writer:
        writer.add_bytes("kernels/all.cubin", _cubin(isa))
        for plan in plans.values():
            *first, _ = plan.steps
            call = CallStep("gemm", ("x", "w:head", "logits"), "k3.linear", 0)
            buffers = (plan.buffers[0], replace(plan.buffers[1], shape=("T", samples.VOCAB)))
            writer.add_plan(replace(plan, steps=(*first, call), buffers=buffers))
        writer.add_weights(samples.weights())
        target = TargetRecord("here", "cuda", isa)
        writer.commit(samples.manifest(kernels=(embed, feed), target=target))
    engine = Engine(tmp_path / "pkg", checkpoint, max_context=128)
    tokens = [int(i) for i in range(30)]
    for chunks in (None, [1]):
        found = engine.logits(tokens, chunks=chunks)
        np.testing.assert_allclose(found, expected_logits[tokens], rtol=1e-3, atol=1e-3)
    engine.close()


def test_nvtx_ranges_replace_graphs(
    package: Path,
    checkpoint: TensorTable,
    expected_logits: Floats,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("K3C_NVTX", "1")
    engine = Engine(package, checkpoint, max_context=128)
    found = engine.logits([5, 6, 7], chunks=[1])
    np.testing.assert_allclose(found, expected_logits[[5, 6, 7]], rtol=1e-5, atol=1e-5)
    program = engine.executor.runner("decode")._program
    assert isinstance(program, CudaProgram)
    assert not program._graphs
    engine.close()


def test_another_isa_is_refused(tmp_path: Path, checkpoint: TensorTable) -> None:
    samples.write_sample(tmp_path / "pkg", target=TargetRecord("other", "cuda", "sm_75"))
    with pytest.raises(K3Error, match="K3-K009"):
        Engine(tmp_path / "pkg", checkpoint)


def test_no_such_device(package: Path, checkpoint: TensorTable) -> None:
    with pytest.raises(K3Error, match="K3-R006"):
        Engine(package, checkpoint, device="cuda:99")


def test_damaged_cubin_is_refused_by_name(
    isa: str, tmp_path: Path, checkpoint: TensorTable
) -> None:
    kernels = samples.kernels({"cubin": "kernels/all.cubin"})
    target = TargetRecord("here", "cuda", isa)
    samples.write_sample(
        tmp_path / "pkg", {"kernels/all.cubin": b"junk" * 64}, kernels=kernels, target=target
    )
    with pytest.raises(K3Error, match="K3-R009") as caught:
        Engine(tmp_path / "pkg", checkpoint)
    assert "embed" in caught.value.where
