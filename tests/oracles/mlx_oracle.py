"""mlx-lm's implementation of a checkpoint, on the CPU in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.package.safetensors_map import CheckpointFiles

Array = NDArray[Any]


class MlxOracle:
    """``forward`` gives logits ``[T, vocab]``; with a cache, step by step."""

    def __init__(self, directory: Path) -> None:
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        keys: dict[str, Any] = json.loads((directory / "config.json").read_text())
        self._mx = mx
        self.model = _build(keys)
        files = CheckpointFiles(directory)
        weights = {_prefixed(n, keys): mx.array(_plain(files.read(n))) for n in files.names()}
        self.model.load_weights(list(self.model.sanitize(weights).items()), strict=True)
        self.model.eval()

    def new_cache(self) -> list[Any]:
        return self.model.make_cache()

    def forward(self, tokens: list[int], cache: list[Any] | None = None) -> Array:
        logits = self.model(self._mx.array([tokens]), cache=cache)
        return np.array(logits[0].astype(self._mx.float32))


def _build(keys: dict[str, Any]) -> Any:
    if keys["model_type"] == "kimi_linear":
        from mlx_lm.models import kimi_linear

        extra = {"head_dim": 64, "rope_theta": 10000.0}  # required there, used by neither mixer
        return kimi_linear.Model(kimi_linear.ModelArgs.from_dict(extra | keys))
    from mlx_lm.models import kimi_k3

    model = kimi_k3.Model(kimi_k3.ModelArgs.from_dict(keys))
    if "quantization_config" in keys.get("text_config", keys):
        _quantize_experts(model)
    return model


def _quantize_experts(model: Any) -> None:
    from mlx import nn

    nn.quantize(
        model,
        group_size=32,
        bits=4,
        mode="mxfp4",
        class_predicate=lambda path, _: "switch_mlp." in path and path.endswith("_proj"),
    )


def _prefixed(name: str, keys: dict[str, Any]) -> str:
    if keys["model_type"] == "kimi_linear" or name.startswith("language_model."):
        return name
    return f"language_model.{name}"


def _plain(tensor: Array) -> Array:
    """Bytes stay; everything else is float32."""
    return tensor if tensor.dtype == np.uint8 else tensor.astype(np.float32)
