"""Random checkpoints in the published format, with gates and decays like a trained model's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from k3compiler.config import ModelConfig
from k3compiler.dtypes import numpy_dtype, pack_mxfp4
from k3compiler.package.checkpoint_names import TEXT_PREFIX
from k3compiler.package.safetensors_map import INDEX_FILE, SINGLE_FILE
from k3compiler.package.tensor_table import ExpertFormat, TensorSpec, expected_tensors
from k3compiler.reference.config_json import config_to_json

Array = NDArray[Any]

LOGIT_STD = 2.0
UNUSED_A_LOG = 9.0  # fills A_log past the heads: wrong by far wherever it is read
_GAINS = {"lm_head": LOGIT_STD, "embed_tokens": 1.0, "w1": 1.5, "w3": 1.5, "gate_proj": 1.5}


def make_checkpoint(
    directory: str | Path,
    config: ModelConfig,
    seed: int = 0,
    *,
    experts: ExpertFormat | None = None,
    wrapper: bool = False,
    num_shards: int = 1,
) -> ModelConfig:
    """Write config.json and safetensors; the same bytes for the same arguments.

    ``experts`` overrides the config's format; ``wrapper`` writes the multimodal layout (prefix
    ``language_model.``, ``text_config``) without a vision tower; ``num_shards`` > 1 adds an
    index. Returns the config that the directory holds.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if experts is not None and config.moe is not None:
        config = replace(config, moe=replace(config.moe, expert_format=experts))
    text = json.dumps(config_to_json(config, wrapper=wrapper), indent=2)
    (directory / "config.json").write_text(text + "\n")
    prefix = TEXT_PREFIX if wrapper else ""
    tensors = {prefix + name: value for name, value in random_tensors(config, seed)}
    _save(directory, tensors, num_shards)
    return config


def _save(directory: Path, tensors: dict[str, Array], num_shards: int) -> None:
    if num_shards == 1:
        save_file(tensors, directory / SINGLE_FILE)
        return
    names = sorted(tensors)
    table: dict[str, str] = {}
    for n in range(num_shards):
        file = f"model-{n + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[n::num_shards]}
        save_file(part, directory / file)
        table |= dict.fromkeys(part, file)
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": dict(sorted(table.items())),
    }
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def random_tensors(config: ModelConfig, seed: int = 0) -> Iterator[tuple[str, Array]]:
    """Every tensor of the table by canonical name; each depends on the seed and its name only."""
    for name, spec in expected_tensors(config).items():
        if name.endswith(".weight_packed"):
            base = name.removesuffix("_packed")
            rows, half = spec.shape
            packed, scale = pack_mxfp4(_matrix(_rng(seed, base), base, (rows, 2 * half)))
            yield name, packed
            yield f"{base}_scale", scale
        elif not name.endswith(".weight_scale"):
            value = _values(_rng(seed, name), name, spec, config)
            yield name, value.astype(numpy_dtype(spec.dtype))


def _rng(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, crc32(name.encode())])


def _values(rng: np.random.Generator, name: str, spec: TensorSpec, config: ModelConfig) -> Array:
    leaf = name.removesuffix(".weight").rsplit(".", 1)[-1]
    bounded = config.kda.gate_lower_bound is not None
    if leaf == "A_log":
        return _a_log(rng, spec, config.kda.num_heads, bounded)
    if leaf == "dt_bias":
        return _dt_bias(rng, spec, bounded)
    if leaf == "e_score_correction_bias":
        return 0.1 * rng.standard_normal(spec.shape)
    if leaf.endswith("_conv1d"):
        current = np.array([0.0] * (spec.shape[-1] - 1) + [0.7])
        return current + 0.3 * rng.standard_normal(spec.shape)
    if len(spec.shape) == 1:  # every other vector is a norm's weight
        return 1 + 0.1 * rng.standard_normal(spec.shape)
    return _matrix(rng, name, spec.shape)


def _matrix(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Normal with variance gain²/in: unit inputs give outputs of size gain."""
    leaf = name.removesuffix(".weight").rsplit(".", 1)[-1]
    fan_in = 1 if leaf == "embed_tokens" else shape[-1]
    return rng.standard_normal(shape) * (_GAINS.get(leaf, 1.0) * fan_in**-0.5)


def _a_log(rng: np.random.Generator, spec: TensorSpec, num_heads: int, bounded: bool) -> Array:
    low, high = (-0.7, 0.7) if bounded else (-1.0, 2.0)
    values = np.full(spec.shape, UNUSED_A_LOG)
    values.reshape(-1)[:num_heads] = rng.uniform(low, high, num_heads)
    return values


def _dt_bias(rng: np.random.Generator, spec: TensorSpec, bounded: bool) -> Array:
    """Decays from almost 1 (long memory) to the bound; softplus: steps of 1e-3 to 1e-1."""
    if bounded:
        return rng.normal(-1.5, 2.0, spec.shape)
    step = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), spec.shape))
    return step + np.log(-np.expm1(-step))
