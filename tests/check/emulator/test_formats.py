"""The emulator's number formats against ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from k3compiler.check.emulator import formats
from k3compiler.check.emulator.atomics import atomic32, atomic64
from k3compiler.check.emulator.fields import U32

TABLES = [
    (formats.E4M3, ml_dtypes.float8_e4m3fn),
    (formats.E5M2, ml_dtypes.float8_e5m2),
    (formats.E4M3_FNUZ, ml_dtypes.float8_e4m3fnuz),
    (formats.E5M2_FNUZ, ml_dtypes.float8_e5m2fnuz),
    (formats.E2M1, ml_dtypes.float4_e2m1fn),
    (formats.E2M3, ml_dtypes.float6_e2m3fn),
    (formats.E3M2, ml_dtypes.float6_e3m2fn),
]


@pytest.mark.parametrize(("table", "dtype"), TABLES, ids=lambda p: getattr(p, "__name__", ""))
def test_every_code_has_its_value(table: Any, dtype: Any) -> None:
    codes = np.arange(len(table), dtype=np.uint8)
    np.testing.assert_array_equal(table, codes.view(dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("table", "dtype"), [TABLES[0], TABLES[1], TABLES[4]], ids=lambda p: getattr(p, "__name__", "")
)
def test_numbers_are_rounded_to_nearest_even(table: Any, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    largest = float(np.nanmax(table[np.isfinite(table)]))
    value = rng.uniform(-largest, largest, 4000).astype(np.float32)
    value[:8] = [0.0, -0.0, 0.25, 0.75, 1.25, -1.25, 2.5, -3.5]  # halfway in e2m1
    want = value.astype(dtype).view(np.uint8)
    np.testing.assert_array_equal(formats.encode_small(value, table), want)


def test_fp8_overflow_saturates_or_is_nan() -> None:
    big = np.array([1000.0, -1000.0, 460.0, np.nan], np.float32)
    assert formats.encode_small(big, formats.E4M3).tolist() == [0x7E, 0xFE, 0x7E, 0x7F]
    assert formats.encode_small(big, formats.E4M3, saturate=False).tolist() == [
        0x7F,
        0xFF,
        0x7E,
        0x7F,
    ]


def test_bf16_rounds_as_ml_dtypes() -> None:
    value = np.random.default_rng(2).standard_normal(5000).astype(np.float32)
    want = value.astype(ml_dtypes.bfloat16).view(np.uint16).astype(U32)
    np.testing.assert_array_equal(formats.bf16_bits(value), want)


@pytest.mark.parametrize(
    ("key", "kind", "old", "value", "want"),
    [
        ("ADD", "", 0xFFFFFFFF, 2, 1),
        ("SMIN", "", 0xFFFFFFFF, 2, 0xFFFFFFFF),
        ("UMIN", "", 0xFFFFFFFF, 2, 2),
        ("MAX", "I32", 0xFFFFFFFF, 2, 2),
        ("INC", "", 7, 7, 0),
        ("DEC", "", 0, 9, 9),
        ("ADD", "F32", 0x3F800000, 0x40000000, 0x40400000),
        ("ADD", "PKBF16", 0x3F803F80, 0x3F804000, 0x40004040),
    ],
)
def test_atomics(key: str, kind: str, old: int, value: int, want: int) -> None:
    assert atomic32(key, kind, old, value) == want


def test_compare_and_swap() -> None:
    assert atomic32("CMPSWAP", "", 5, 8, 5) == 8
    assert atomic32("CMPSWAP", "", 6, 8, 5) == 6
    assert atomic64("ADD", "", 2**64 - 1, 3) == 2
    with pytest.raises(NotImplementedError, match="atomic FROB"):
        atomic32("FROB", "", 1, 2)
