"""Masters to a checkpoint in the published format (spec sections 6 and 10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from examples.train.weights import Weights
from k3compiler.config import ModelConfig
from k3compiler.dtypes import numpy_dtype, pack_mxfp4, unpack_mxfp4
from k3compiler.package.checkpoint_names import TEXT_PREFIX
from k3compiler.package.tensor_table import expected_tensors
from k3compiler.reference.config_json import config_to_json

Array = NDArray[Any]
PART_BYTES = 15 << 20


def checkpoint_tensors(weights: Weights) -> dict[str, Array]:
    """Every tensor of the table by canonical name, in its stored type."""
    plain = {name: view.cpu().numpy() for name, view in weights.parts()}
    for name, bias in weights.bias.items():
        plain[f"{name}.gate.e_score_correction_bias"] = bias.cpu().numpy()
    ready: dict[str, Array] = {}
    for name, spec in expected_tensors(weights.config).items():
        if name.endswith(".weight_packed"):
            base = name.removesuffix("_packed")
            ready[name], ready[f"{base}_scale"] = pack_mxfp4(plain[base])
        elif not name.endswith(".weight_scale"):
            ready[name] = plain[name].astype(numpy_dtype(spec.dtype))
            assert ready[name].shape == spec.shape, name
    return ready


def checkpoint_bytes(weights: Weights) -> bytes:
    """The safetensors file of the multimodal layout (prefix ``language_model.``)."""
    tensors = checkpoint_tensors(weights)
    return save({TEXT_PREFIX + name: np.ascontiguousarray(t) for name, t in tensors.items()})


def config_text(config: ModelConfig) -> str:
    """config.json of the same layout."""
    return json.dumps(config_to_json(config, wrapper=True), indent=2) + "\n"


def write_parts(directory: Path, stem: str, content: bytes) -> list[Path]:
    """``stem.00``, ``stem.01``, ... of at most 15 MiB each; :func:`join_parts` undoes it."""
    directory.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for n, start in enumerate(range(0, len(content), PART_BYTES)):
        paths.append(directory / f"{stem}.{n:02d}")
        paths[-1].write_bytes(content[start : start + PART_BYTES])
    return paths


def join_parts(directory: Path, stem: str) -> bytes:
    """The parts' bytes, in order."""
    return b"".join(p.read_bytes() for p in sorted(directory.glob(f"{stem}.[0-9][0-9]")))


def load_checkpoint(path: Path, weights: Weights) -> None:
    """Fill ``weights`` from a model.safetensors (experts dequantised, which is exact)."""
    stored = {n.removeprefix(TEXT_PREFIX): t for n, t in load_file(path).items()}
    plain: dict[str, torch.Tensor] = {}
    for name, value in stored.items():
        if name.endswith("_packed"):
            base = name.removesuffix("_packed")
            value, name = unpack_mxfp4(value, stored[f"{base}_scale"]), base
        plain[name] = torch.from_numpy(value.astype(np.float32))
    weights.load(plain)
