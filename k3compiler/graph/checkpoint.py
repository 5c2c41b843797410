"""A checkpoint against its config: every tensor there, none besides, each of the right kind."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Literal

from k3compiler.config import ModelConfig
from k3compiler.errors import K3Error
from k3compiler.graph.config_import import CONFIG_FILE, load_config, read_config_json
from k3compiler.package.checkpoint_names import VISION_PREFIXES, canonical_names
from k3compiler.package.safetensors_map import CheckpointFiles
from k3compiler.package.tensor_table import TensorSpec, expected_tensors

__all__ = ["TensorSpec", "check_checkpoint", "expected_tensors", "load_checkpoint_config"]

MAX_FAULTS_SHOWN = 20
_MTP_PREFIXES = ("mtp", "model.mtp")


def load_checkpoint_config(directory: str | Path) -> ModelConfig:
    """config.json, refined by what only the tensors tell: expert format and A_log's shape.

    Raises:
        K3Error: as ``load_config``; K3-G005 for unreadable files.
    """
    directory = Path(directory)
    config = load_config(directory / CONFIG_FILE)
    return refine_config(config, CheckpointFiles(directory))


def refine_config(config: ModelConfig, files: CheckpointFiles) -> ModelConfig:
    """The config with expert format and A_log's shape as the tensors have them."""
    stored = canonical_names(files.names())
    a_logs = (stored[n] for n in stored if n.endswith(".A_log"))
    if name := next(a_logs, None):
        shape = files.info(name)[1]
        size, rank = max(prod(shape), config.kda.num_heads), 4 if len(shape) == 4 else 1
        config = replace(config, kda=replace(config.kda, a_log_size=size, a_log_rank=rank))
    if config.moe is None:
        return config
    packed = any(".experts." in n and n.endswith(".weight_packed") for n in stored)
    plain = any(".experts." in n and n.endswith(".weight") for n in stored)
    if packed == plain:  # neither or both: the strict check will say what is wrong
        return config
    kind: Literal["mxfp4", "plain"] = "mxfp4" if packed else "plain"
    return replace(config, moe=replace(config.moe, expert_format=kind))


def check_checkpoint(directory: str | Path, config: ModelConfig) -> CheckpointFiles:
    """Refuse a checkpoint that does not hold exactly the config's tensors.

    Prefix and legacy spellings are accepted, and plain tensors may be stored wider (f32 for
    bf16). Vision and MTP tensors are tolerated in the multimodal wrapper only. -> the files.

    Raises:
        K3Error K3-G004: the list of missing, extra and wrong tensors; K3-G005: unreadable files.
    """
    directory = Path(directory)
    files = CheckpointFiles(directory)
    config = refine_config(config, files)
    is_wrapper = "text_config" in read_config_json(directory / CONFIG_FILE)
    expected, stored = expected_tensors(config), canonical_names(files.names())
    faults = [
        f"missing: {name} {_shown(spec)}" for name, spec in expected.items() if name not in stored
    ]
    faults += [
        f"extra: {stored[name]}"
        for name in stored
        if name not in expected and not (is_wrapper and _beside_text(name, config))
    ]
    faults += _twice(files)
    for name, spec in expected.items():
        if name in stored and (fault := _mismatch(name, spec, files.info(stored[name]), config)):
            faults.append(fault)
    if faults:
        raise _refusal(directory, faults, len(expected))
    return files


def _twice(files: CheckpointFiles) -> list[str]:
    stored = canonical_names(files.names())
    return [
        f"extra: {name} (another spelling is there too)"
        for name in sorted(set(files.names()) - set(stored.values()))
    ]


def _beside_text(name: str, config: ModelConfig) -> bool:
    """Vision tower, projector, or MTP (own prefix, or layers past the last)."""
    if name.startswith((*VISION_PREFIXES, *_MTP_PREFIXES)):
        return True
    head, _, rest = name.partition("model.layers.")
    layer = rest.partition(".")[0]
    return head == "" and layer.isdigit() and int(layer) >= config.num_layers


def _mismatch(
    name: str, spec: TensorSpec, info: tuple[str, tuple[int, ...]], config: ModelConfig
) -> str | None:
    dtype, shape = info
    if shape != spec.shape:
        return f"shape: {name} should be {_shown(spec)}, is {dtype} {list(shape)}"
    if dtype not in _dtypes(spec, config):
        return f"dtype: {name} should be {_shown(spec)}, is {dtype}"
    return None


def _dtypes(spec: TensorSpec, config: ModelConfig) -> tuple[str, ...]:
    """What may stand for the table's dtype: wider, never narrower, except in the 48B family."""
    if spec.dtype == "i8":
        return ("i8",)
    if spec.dtype == "f32" and config.name == "kimi_k3":
        return ("f32",)
    return ("bf16", "f32")


def _shown(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"


def _refusal(directory: Path, faults: list[str], num_expected: int) -> K3Error:
    shown = faults[:MAX_FAULTS_SHOWN]
    if len(faults) > len(shown):
        shown.append(f"and {len(faults) - len(shown)} more")
    return K3Error(
        "K3-G004",
        where=str(directory),
        expected=f"the {num_expected} tensors that {CONFIG_FILE} asks for, and no others",
        found=f"{len(faults)} faults:\n    " + "\n    ".join(shown),
    )
