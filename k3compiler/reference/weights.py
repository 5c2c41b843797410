"""A checkpoint's tensors as the reference wants them: one float type, experts dequantised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from k3compiler.dtypes import unpack_mxfp4
from k3compiler.package.checkpoint_names import canonical_names

Array = NDArray[Any]


class ReferenceWeights:
    """Tensors by canonical name, converted once to ``dtype`` and kept.

    Packed MXFP4 experts are found by their stored names (``.weight_packed``) and dequantised,
    which is exact.
    """

    def __init__(self, tensors: Mapping[str, Array], dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self._tensors = tensors
        self._stored = canonical_names(tensors)
        self._ready: dict[str, Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def __getitem__(self, name: str) -> Array:
        if name not in self._ready:
            self._ready[name] = np.asarray(self._load(name)).astype(self.dtype)
        return self._ready[name]

    def _load(self, name: str) -> Array:
        packed = f"{name}_packed"
        if packed not in self._stored:
            return self._tensors[self._stored[name]]
        scale = self._tensors[self._stored[f"{name}_scale"]]
        return unpack_mxfp4(self._tensors[self._stored[packed]], scale)


class ExpertMatrices:
    """The matrices ``w1``, ``w2`` or ``w3`` of a layer's experts, each loaded when asked for."""

    def __init__(self, weights: ReferenceWeights, layer: str, matrix: str, count: int) -> None:
        self._weights, self._layer, self._matrix = weights, layer, matrix
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, expert: int) -> Array:
        name = f"{self._layer}.block_sparse_moe.experts.{expert}.{self._matrix}.weight"
        return self._weights[name]
