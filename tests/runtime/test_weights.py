"""SOURCE trees against numpy, and checkpoints that do not fit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from k3compiler.dtypes import numpy_dtype
from k3compiler.errors import K3Error
from k3compiler.package.manifest import ParamRecord, WeightMap
from k3compiler.runtime.weights import WeightLoader
from tests.runtime.conftest import TensorTable

RNG = np.random.default_rng(0)
A = RNG.normal(size=(6, 4)).astype(np.float32)
B = RNG.normal(size=(3, 4)).astype(ml_dtypes.bfloat16)
EXPERTS = RNG.integers(0, 255, (5, 4, 2), dtype=np.uint8)


def _table(**changes: Any) -> TensorTable:
    tensors: dict[str, NDArray[Any]] = {"language_model.a": A, "language_model.b": B}
    dtypes = {"language_model.b": "bf16"}
    for e, data in enumerate(EXPERTS):
        name = f"language_model.experts.{e}.w1.weight_scale"
        tensors[name], dtypes[name] = data, "i8"
    return TensorTable({k: v for k, v in (tensors | changes).items() if v is not None}, dtypes)


def _load(
    source: dict[str, Any], shape: tuple[int, ...], dtype: str = "f32", rank: int = 0
) -> NDArray[Any]:
    loader = WeightLoader(_table(), rank=rank)
    param = ParamRecord("p", dtype, shape, source)
    loader.check(WeightMap((param,)))
    out = np.full(shape, 77, numpy_dtype(dtype))
    loader.load(param, out)
    return out


_A, _B = {"tensor": "a"}, {"tensor": "b"}
_BF = B.astype(np.float32)
_STACK = {"name": "experts.{e}.w1.weight_scale", "first": "rank*2", "count": 2}


@pytest.mark.parametrize(
    ("source", "want"),
    [
        (_A, A),
        (_B, _BF),
        ({"tensor": "a", "slice": [["rank*2", "rank*2+2"], None]}, A[2:4]),
        ({"tensor": "a", "slice": [None, [1, 3]]}, A[:, 1:3]),
        ({"concat": [_A, _B], "axis": 0}, np.concatenate([A, _BF])),
        (
            {"concat": [{"tensor": "a", "slice": [[0, 3]]}, _B], "axis": 1},
            np.concatenate([A[:3], _BF], axis=1),
        ),
        ({"reshape": [4, "3+3"], "of": _A}, A.reshape(4, 6)),
        ({"transpose": [1, 0], "of": _A}, A.T),
        ({"pad": [[1, 0], [0, 4]], "of": _A}, np.pad(A, ((1, 0), (0, 4)))),
        (
            {"transpose": [2, 0, 1], "of": {"reshape": [2, 3, 4], "of": _A}},
            A.reshape(2, 3, 4).transpose(2, 0, 1),
        ),
        (
            {"concat": [{"transpose": [1, 0], "of": {"reshape": [12, 1], "of": _B}}], "axis": 0},
            _BF.reshape(1, 12),
        ),
    ],
)
def test_float_sources(source: dict[str, Any], want: NDArray[Any]) -> None:
    np.testing.assert_array_equal(_load(source, want.shape, rank=1), want)


def test_experts_are_stacked_for_a_rank() -> None:
    found = _load({"stack": _STACK}, (2, 4, 2), "i8", rank=1)
    np.testing.assert_array_equal(found, EXPERTS[2:4])
    sliced = {"stack": _STACK | {"slice": [[1, 3]]}}
    np.testing.assert_array_equal(_load(sliced, (2, 2, 2), "i8"), EXPERTS[:2, 1:3])


@pytest.mark.parametrize("layout", ["e2m1_16x128", "e8m0_32x256"])
def test_shuffled_weights_lie_where_their_layout_says(layout: str) -> None:
    """Stacked experts through memory one by one: the same bytes as the layout's formula, filled up with zeros."""
    rows, width = (
        48,
        (192 if layout == "e2m1_16x128" else 12),
    )  # K = 384: filled up to 512, rows to 64
    experts = RNG.integers(0, 255, (2, rows, width), dtype=np.uint8)
    tensors = {f"language_model.x.{e}.w": data for e, data in enumerate(experts)}
    loader = WeightLoader(TensorTable(tensors, dict.fromkeys(tensors, "i8")))
    stack = {"stack": {"name": "x.{e}.w", "first": 0, "count": 2}}
    source = {"shuffle": layout, "of": stack}
    full = np.zeros((2, 64, 256 if layout == "e2m1_16x128" else 16), np.uint8)
    full[:, :rows, :width] = experts
    param = ParamRecord("p", "i8", full.shape, source)
    loader.check(WeightMap((param,)))
    out = np.full(full.shape, 77, np.uint8)
    loader.load(param, out)
    if layout == "e2m1_16x128":
        want = full.reshape(2, 4, 16, 4, 4, 16).transpose(0, 1, 3, 4, 2, 5)
    else:
        want = full.reshape(2, 2, 2, 16, 2, 2, 4).transpose(0, 1, 4, 6, 3, 5, 2)
    np.testing.assert_array_equal(out, want.reshape(full.shape))


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(K3Error, match="layout zigzag") as caught:
        _load({"shuffle": "zigzag", "of": _A}, (6, 4))
    assert caught.value.code == "K3-K003"


def test_float32_is_rounded_to_bfloat16() -> None:
    found = _load(_A, (6, 4), "bf16")
    np.testing.assert_array_equal(found, A.astype(ml_dtypes.bfloat16))


def test_missing_tensors_are_listed() -> None:
    params = tuple(ParamRecord(n, "f32", (6, 4), {"tensor": n}) for n in ("x", "a", "y"))
    with pytest.raises(K3Error, match="K3-R001") as caught:
        WeightLoader(_table()).check(WeightMap(params))
    assert "x is missing; y is missing" in caught.value.found


def test_many_faults_are_cut_short() -> None:
    params = tuple(ParamRecord(f"n{i}", "f32", (1,), {"tensor": f"n{i}"}) for i in range(20))
    with pytest.raises(K3Error, match="and 12 more"):
        WeightLoader(_table()).check(WeightMap(params))


@pytest.mark.parametrize(
    ("source", "shape", "dtype"),
    [
        (_A, (4, 6), "f32"),
        (_A, (6, 4), "i8"),
        ({"stack": _STACK}, (2, 4, 2), "f32"),
        ({"tensor": "a", "slice": [[0, 7]]}, (7, 4), "f32"),
        ({"tensor": "a", "slice": [None, None, None]}, (6, 4), "f32"),
        ({"concat": [_A, _B], "axis": 1}, (6, 8), "f32"),
        ({"reshape": [5, 5], "of": _A}, (5, 5), "f32"),
        ({"transpose": [0, 0], "of": _A}, (6, 6), "f32"),
        ({"pad": [[0, 1]], "of": _A}, (7, 4), "f32"),
    ],
)
def test_misfits(source: dict[str, Any], shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(K3Error, match="K3-R001"):
        _load(source, shape, dtype)


@pytest.mark.parametrize("source", [{}, {"tensor": 3}, {"concat": _A, "axis": 0}, {"pad": [1]}])
def test_malformed_sources(source: dict[str, Any]) -> None:
    with pytest.raises(K3Error, match="K3-K003"):
        _load(source, (1,))


def test_nan_scale_is_refused_by_name() -> None:
    bad = EXPERTS[1].copy()
    bad[2, 1] = 255
    table = _table(**{"language_model.experts.1.w1.weight_scale": bad})
    param = ParamRecord("scales", "i8", (2, 4, 2), {"stack": _STACK})
    out = np.zeros((2, 4, 2), np.uint8)
    with pytest.raises(K3Error, match="K3-R002") as caught:
        WeightLoader(table).load(param, out)
    assert caught.value.where == "experts.1.w1.weight_scale"
    assert "[2, 1]" in caught.value.found
    WeightLoader(table, allow_nan_scales=True).load(param, out)
    assert out[1, 2, 1] == 255
