"""Number formats: names, numpy types, and the MX encodings bit by bit.

Names used everywhere: ``f32 bf16 f16 e4m3 i32 i8`` (``i8`` is an unsigned byte). Numpy and
ml_dtypes only. Source: spec section 6; OCP Microscaling Formats.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from k3compiler.config import MX_GROUP

Array = NDArray[Any]

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.uint8),
}

E2M1_VALUES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
E2M1_MAX, E4M3_MAX = 6.0, 448.0
E2M1_EMAX, E4M3_EMAX = 2, 8  # exponents of the largest powers of two they hold
F32_MANTISSA_BITS = 23
E4M3_CARRY = 0x1F_FFFF  # added to the bits of an f32 above 448 / 2^8 of its power of two, it makes the exponent greater
SCALE_BIAS = 127
SCALE_NAN = 255

_E2M1_CODES = np.concatenate([E2M1_VALUES, -E2M1_VALUES])  # index = 4-bit code; code 8 is -0
_E2M1_MIDPOINTS = (E2M1_VALUES[1:] + E2M1_VALUES[:-1]) / 2


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy type of a dtype name."""
    return NUMPY_DTYPES[name]


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The dtype name of a numpy type; the inverse of :func:`numpy_dtype`."""
    return next(name for name, known in NUMPY_DTYPES.items() if known == dtype)


def itemsize(name: str) -> int:
    """Bytes of one element."""
    return NUMPY_DTYPES[name].itemsize


def e8m0_to_f32(scale: Array) -> NDArray[np.float32]:
    """Scale bytes to numbers: ``2^(s-127)``, 255 is NaN, 0 is 2^-127 (a subnormal)."""
    exponent = np.minimum(scale, SCALE_NAN - 1).astype(np.int32) - SCALE_BIAS
    value = np.ldexp(np.float32(1), exponent)
    return np.where(scale == SCALE_NAN, np.float32(np.nan), value).astype(np.float32)


def e2m1_to_f32(packed: Array) -> NDArray[np.float32]:
    """Packed nibbles ``[..., n/2] u8`` to ``[..., n] f32``; the low nibble is the even column."""
    codes = np.stack([packed & 0x0F, packed >> 4], axis=-1)
    return _E2M1_CODES[codes.reshape(*packed.shape[:-1], packed.shape[-1] * 2)]


def f32_to_e2m1(x: ArrayLike) -> NDArray[np.uint8]:
    """Round to the nearest E2M1 (ties to the even code, saturating at 6) and pack.

    Shapes: ``x [..., n]``, n even -> ``[..., n/2] u8``.
    """
    values = np.asarray(x, dtype=np.float32)
    size = np.abs(values)
    above = np.searchsorted(_E2M1_MIDPOINTS, size, side="left")  # a tie rounds down here ...
    tie = size == _E2M1_MIDPOINTS[np.minimum(above, len(_E2M1_MIDPOINTS) - 1)]
    codes = above + (tie & (above % 2 == 1))  # ... and up where that makes the code even
    codes = (codes | (np.signbit(values) << 3)).astype(np.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_mxfp4(packed: Array, scale: Array) -> NDArray[np.float32]:
    """Dequantise MXFP4 weights; every product is exact in bf16 (and in f32).

    Shapes: ``packed [..., N, K/2] u8``, ``scale [..., N, K/32] u8`` -> ``[..., N, K] f32``.
    Source: spec section 6.
    """
    values = e2m1_to_f32(packed)
    return _scale_groups(values, e8m0_to_f32(scale))


def pack_mxfp4(w: ArrayLike) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Quantise to MXFP4: shared exponent ``floor(log2 amax) - 2``, nearest E2M1, saturating.

    Shapes: ``w [..., N, K]``, K a multiple of 32 -> ``packed [..., N, K/2]``,
    ``scale [..., N, K/32]``, both u8. Source: spec section 6 (encoding).
    """
    values = np.asarray(w, dtype=np.float32)
    scale = _shared_scale(values, E2M1_EMAX)
    return f32_to_e2m1(_scale_groups(values, np.float32(1) / e8m0_to_f32(scale))), scale


def quantize_mxfp8(x: ArrayLike) -> tuple[Array, NDArray[np.uint8]]:
    """Quantise activations to MXFP8: E4M3 with one E8M0 per 32 along the last axis.

    The scale is the least power of two with which nothing saturates, ``2^ceil(log2(amax / 448))``, as in vLLM's and
    TensorRT-LLM's MXFP8. That of the OCP specification, ``2^(floor(log2 amax) - 8)``, cuts what lies above 448 of 512
    off and costs two of seven parts of the experts' accuracy.

    Shapes: ``x [..., K]`` -> ``values [..., K] e4m3``, ``scale [..., K/32] u8``. A group that
    holds NaN or infinity gets scale byte 255.
    """
    values = np.asarray(x, dtype=np.float32)
    scale = _shared_scale(values, E4M3_EMAX, E4M3_CARRY)
    unit = np.where(scale == SCALE_NAN, np.float32(1), e8m0_to_f32(scale))
    return _scale_groups(values, np.float32(1) / unit).astype(NUMPY_DTYPES["e4m3"]), scale


def dequantize_mxfp8(values: Array, scale: Array) -> NDArray[np.float32]:
    """``values [..., K] e4m3`` times ``scale [..., K/32] u8`` -> ``[..., K] f32``."""
    return _scale_groups(values.astype(np.float32), e8m0_to_f32(scale))


def _shared_scale(values: NDArray[np.float32], emax: int, carry: int = 0) -> NDArray[np.uint8]:
    """One E8M0 byte per group: the exponent of amax, its bits raised by ``carry``, less ``emax``; at least 0."""
    assert values.shape[-1] % MX_GROUP == 0, f"{values.shape} is not a multiple of {MX_GROUP}"
    grouped = values.reshape(*values.shape[:-1], -1, MX_GROUP)
    bits = np.abs(grouped).max(axis=-1).view(np.int32)
    biased = np.maximum((bits + carry >> F32_MANTISSA_BITS) - emax, 0)
    return np.where(bits < SCALE_NAN << F32_MANTISSA_BITS, biased, SCALE_NAN).astype(np.uint8)


def _scale_groups(values: NDArray[np.float32], scale: Array) -> NDArray[np.float32]:
    grouped = values.reshape(*scale.shape, MX_GROUP)
    return (grouped * scale[..., None]).reshape(values.shape)
