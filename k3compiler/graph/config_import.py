"""config.json -> ModelConfig, presets, and what MODEL means on the command line."""

from __future__ import annotations

import json
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from k3compiler.config import ModelConfig
from k3compiler.errors import K3Error
from k3compiler.graph.config_keys import ConfigKeys
from k3compiler.graph.config_text import read_text_config
from k3compiler.graph.config_vision import read_vision_config

CONFIG_FILE = "config.json"
PRESETS = ("kimi-k3", "kimi-linear-48b")
MODEL_TYPES = ("kimi_k3", "kimi_linear")
# Keys that a wrapper may state above its text_config; both places must agree.
SHARED_KEYS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "tie_word_embeddings",
    "quantization_config",
)


def load_config(source: str | Path | dict[str, Any]) -> ModelConfig:
    """The text model of a config.json (path or parsed object).

    Takes K3's multimodal wrapper, a text-only K3, and the Kimi-Linear family.

    Raises:
        K3Error K3-G001: key missing or of the wrong kind; K3-G002: key or value not supported;
            K3-G003: keys contradict each other; K3-G005: no readable JSON object.
    """
    data = source if isinstance(source, dict) else read_config_json(Path(source))
    if "text_config" in data:
        return _read_wrapper(data)
    keys = ConfigKeys(data, "")
    model_type = keys.take_choice("model_type", MODEL_TYPES)
    return read_text_config(keys, is_k3=model_type == "kimi_k3")


def read_config_json(path: Path) -> dict[str, Any]:
    """The JSON object of a config.json file."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        _unreadable(path, fault.strerror or str(fault))
    except (ValueError, RecursionError) as fault:
        _unreadable(path, f"not JSON: {fault}")
    if not isinstance(data, dict):
        _unreadable(path, f"JSON, but a {type(data).__name__}")
    return data


def load_preset(name: str) -> ModelConfig:
    """The config of a published model, by name (:data:`PRESETS`)."""
    if name not in PRESETS:
        raise _unknown_model(name)
    return load_config(preset_json(name))


def preset_json(name: str) -> dict[str, Any]:
    """The config.json of a preset."""
    file = resources.files("k3compiler.graph") / "presets" / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def resolve_model(model: str) -> tuple[ModelConfig, Path | None]:
    """MODEL on the command line: a checkpoint directory, a config.json, or a preset name.

    -> the config and the checkpoint directory (None without weights). For a directory, the
    config takes from the tensors what config.json does not say (expert format, A_log padding).

    Raises:
        K3Error K3-G006: none of the three; otherwise as :func:`load_config`.
    """
    from k3compiler.graph.checkpoint import load_checkpoint_config

    path = Path(model)
    if path.is_dir():
        return load_checkpoint_config(path), path
    if path.is_file():
        return load_config(path), None
    if model in PRESETS:
        return load_preset(model), None
    raise _unknown_model(model)


def _read_wrapper(data: dict[str, Any]) -> ModelConfig:
    """K3's multimodal config: the vision part is read and left out."""
    keys = ConfigKeys(data, "")
    keys.take_choice("model_type", ("kimi_k3",))
    keys.take_architectures()
    keys.ignore("media_placeholder_token_id", "image_placeholder", "ignore_index")
    keys.ignore("use_unified_vision_chunk", *(key for key in data if key.startswith("video_")))
    if "vision_config" in keys:
        read_vision_config(keys.take_object("vision_config"))
    keys.ignore("vision_config")
    keys.take_object("text_config")
    text: dict[str, Any] = dict(data["text_config"])
    for key in SHARED_KEYS:
        above = keys.take(key)
        if above is None:
            continue
        if text.setdefault(key, above) != above:
            keys.contradict(key, f"text_config.{key} = {text[key]!r}"[:200])
    inner = ConfigKeys(text, "text_config.")
    inner.take_choice("model_type", MODEL_TYPES, "kimi_linear")
    config = read_text_config(inner, is_k3=True)
    keys.finish()
    return config


def _unreadable(path: Path, found: str) -> NoReturn:
    raise K3Error("K3-G005", where=str(path), expected="a JSON object", found=found)


def _unknown_model(model: str) -> K3Error:
    near = get_close_matches(model.lower(), PRESETS, n=1, cutoff=0.3)
    return K3Error(
        "K3-G006",
        where=model,
        expected=f"a checkpoint directory, a {CONFIG_FILE}, or one of {', '.join(PRESETS)}",
        found="no such file, directory or preset",
        hint=f"did you mean {near[0]}?" if near else "",
    )
