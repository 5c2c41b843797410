"""MX encodings: every code, round trips, and the odd scale bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from k3compiler import dtypes

RNG = np.random.default_rng(5)


def test_every_e2m1_code_agrees_with_ml_dtypes() -> None:
    packed = np.array([[low | high << 4 for high in range(16) for low in range(16)]], np.uint8)
    got = dtypes.e2m1_to_f32(packed)
    codes = np.array([n for byte in packed[0] for n in (byte & 15, byte >> 4)], np.uint8)
    want = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(got[0], want) and np.array_equal(np.signbit(got[0]), np.signbit(want))


def test_low_nibble_is_the_even_column() -> None:
    packed = np.zeros((1, 16), np.uint8)
    packed[0, 0] = 0x72  # low 2 -> 1.0, high 7 -> 6.0
    w = dtypes.unpack_mxfp4(packed, np.full((1, 1), 128, np.uint8))
    assert w[0, :3].tolist() == [2.0, 12.0, 0.0]


def test_rounding_agrees_with_ml_dtypes() -> None:
    x = np.concatenate([np.linspace(-7, 7, 1025), RNG.standard_normal(998), [-0.0, 0.25, 1.25]])
    x = np.append(x, np.zeros(-len(x) % 2)).astype(np.float32)
    want = np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(dtypes.e2m1_to_f32(dtypes.f32_to_e2m1(x)), want)


def test_scale_bytes() -> None:
    scale = dtypes.e8m0_to_f32(np.array([0, 1, 127, 254, 255], np.uint8))
    assert scale[:4].tolist() == [2.0**-127, 2.0**-126, 1.0, 2.0**127]
    assert np.isnan(scale[4])
    packed = np.full((1, 32), 0x22, np.uint8)
    w = dtypes.unpack_mxfp4(packed, np.array([[0, 255]], np.uint8))
    assert (w[0, :32] == 2.0**-127).all() and np.isnan(w[0, 32:]).all()


def test_packing_what_was_unpacked_changes_nothing() -> None:
    w = RNG.standard_normal((3, 8, 96)).astype(np.float32) * 0.02
    once = dtypes.unpack_mxfp4(*dtypes.pack_mxfp4(w))
    assert np.array_equal(dtypes.unpack_mxfp4(*dtypes.pack_mxfp4(once)), once)
    assert np.array_equal(once.astype(ml_dtypes.bfloat16).astype(np.float32), once)
    amax = np.abs(w.reshape(3, 8, 3, 32)).max(-1, keepdims=True)
    # half of E2M1's widest step (1 at the top), or the saturation from 8 to 6, of a group
    assert (np.abs(once - w).reshape(3, 8, 3, 32) <= amax * 0.25 + 1e-9).all()


def test_packing_zeros_and_the_smallest_numbers() -> None:
    w = np.zeros((1, 64), np.float32)
    w[0, 32] = 2.0**-140
    packed, scale = dtypes.pack_mxfp4(w)
    assert not packed.any() and scale.tolist() == [[0, 0]]


@pytest.mark.parametrize("spread", [1e-30, 1.0, 1e30])
def test_mxfp8_round_trip(spread: float) -> None:
    x = (RNG.standard_normal((5, 64)) * spread).astype(np.float32).astype(np.float64)
    values, scale = dtypes.quantize_mxfp8(x)
    assert values.dtype == ml_dtypes.float8_e4m3fn and scale.shape == (5, 2)
    back = dtypes.dequantize_mxfp8(values, scale).astype(np.float64)
    amax = np.abs(x.reshape(5, 2, 32)).max(-1, keepdims=True)
    assert (np.abs(back - x).reshape(5, 2, 32) <= amax / 16).all()
    assert np.linalg.norm(back - x) < 0.03 * np.linalg.norm(x)


@pytest.mark.parametrize("amax", [1.0, 1.74, 1.75, 1.7500001, 1.99, 2.0])
def test_mxfp8_scale_is_the_least_without_saturation(amax: float) -> None:
    x = np.full((1, 32), amax * 2.0**10, np.float32)
    values, scale = dtypes.quantize_mxfp8(x)
    assert scale[0, 0] == np.ceil(np.log2(x[0, 0].astype(np.float64) / 448)) + 127
    assert 224 <= values.astype(np.float32).max() <= 448


def test_mxfp8_of_a_nan_group() -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 3] = np.inf
    values, scale = dtypes.quantize_mxfp8(x)
    back = dtypes.dequantize_mxfp8(values, scale)
    assert scale[0, 0] == 255 and np.isnan(back[0, :32]).all() and (back[0, 32:] == 1).all()


def test_names() -> None:
    for name in dtypes.NUMPY_DTYPES:
        assert dtypes.dtype_name(dtypes.numpy_dtype(name)) == name
    assert [dtypes.itemsize(n) for n in ("f32", "bf16", "e4m3", "i8")] == [4, 2, 1, 1]
