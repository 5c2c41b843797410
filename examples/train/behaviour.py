"""Sections of the measurement that run the reference: gates, router, equal outputs, the draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.train.probes import (
    RETAINED_EDGES,
    SPAN,
    ProbedModel,
    expert_loads,
    histogram,
    retained,
    speculate,
)
from examples.train.shards import read_shards
from k3compiler.draft_config import load_draft_config
from k3compiler.dtypes import numpy_dtype, unpack_mxfp4
from k3compiler.graph.checkpoint import load_checkpoint_config
from k3compiler.package.safetensors_map import CheckpointFiles
from k3compiler.reference.dspark import TARGET_HEAD, DraftModel
from k3compiler.reference.model import ExpertChoices, ReferenceModel

Array = NDArray[Any]
Greedy = Callable[[list[int]], list[int]]
Step = Callable[[list[int]], Array]
TIE = 2e-3
PACKED, SCALE = ".weight_packed", ".weight_scale"


def open_model(directory: Path, dtype: Any) -> ProbedModel:
    """The reference on a checkpoint, with its probes."""
    return ProbedModel(load_checkpoint_config(directory), CheckpointFiles(directory), dtype)


def open_draft(directory: Path, target: ReferenceModel) -> DraftModel:
    """The numpy draft in float32 under its target's head."""
    files = CheckpointFiles(directory)
    config = load_draft_config(directory)
    weights = {name: files.read(name) for name in files.names()}
    return DraftModel(config, weights | {TARGET_HEAD: target.weights[TARGET_HEAD]}, np.float32)


def held_out(data: Path, kind: str, count: int, length: int) -> list[list[int]]:
    """Pieces of the held-out tokens, spread evenly."""
    tokens = read_shards(data, f"heldout-{kind}").astype(int)
    starts = np.linspace(0, len(tokens) - length, count + 2).astype(int)[1:-1]
    return [tokens[start : start + length].tolist() for start in starts]


def gates_and_router(model: ProbedModel, pieces: list[list[int]]) -> dict[str, Any]:
    """Per KDA head the histogram of retained memory, per layer the experts' loads."""
    kept: dict[int, list[Array]] = {}
    chosen: dict[int, list[Array]] = {}
    for piece in pieces:
        choices = ExpertChoices()
        model.forward(piece, choices=choices)
        for layer, gates in model.gates.items():
            kept.setdefault(layer, []).append(retained(gates))
        for layer, ids in choices.chosen.items():
            chosen.setdefault(layer, []).append(ids)
    assert model.config.moe is not None
    num_experts = model.config.moe.num_experts
    loads = {n: expert_loads(ids, num_experts) for n, ids in chosen.items()}
    return {
        "tokens": sum(map(len, pieces)),
        "span": SPAN,
        "edges": RETAINED_EDGES,
        "heads": [
            _head(layer, head, np.concatenate(parts)[:, head])
            for layer, parts in sorted(kept.items())
            for head in range(parts[0].shape[1])
        ],
        "experts": [
            {
                "layer": layer,
                "used": int((load > 0).sum()),
                "busiest_over_mean": round(float(load.max() / load.mean()), 3),
                "idlest_over_mean": round(float(load.min() / load.mean()), 3),
            }
            for layer, load in sorted(loads.items())
        ],
    }


def _head(layer: int, head: int, values: Array) -> dict[str, Any]:
    mean = round(float(values.mean()), 4)
    return {"layer": layer, "head": head, "mean": mean, "shares": histogram(values)}


def unpacked(files: CheckpointFiles) -> dict[str, Array]:
    """The checkpoint with bf16 experts in place of packed ones."""
    tensors: dict[str, Array] = {}
    for name in files.names():
        if name.endswith(PACKED):
            stem = name.removesuffix(PACKED)
            plain = unpack_mxfp4(files.read(name), files.read(stem + SCALE))
            tensors[f"{stem}.weight"] = plain.astype(numpy_dtype("bf16"))
        elif not name.endswith(SCALE):
            tensors[name] = files.read(name)
    return tensors


def packing_matters(directory: Path, tokens: list[int]) -> bool:
    """Whether any bit of the reference's float32 logits depends on how experts are stored."""
    config, files = load_checkpoint_config(directory), CheckpointFiles(directory)
    packed = ReferenceModel(config, files, np.float32).forward(tokens)
    plain = ReferenceModel(config, unpacked(files), np.float32).forward(tokens)
    return not np.array_equal(packed.view(np.uint32), plain.view(np.uint32))


def greedy(step: Step, prompt: list[int], count: int) -> tuple[list[int], list[Array]]:
    """Tokens chosen one by one and the rows they were chosen from; ``step`` keeps its cache."""
    tokens, rows, last = list[int](), list[Array](), prompt
    for _ in range(count):
        rows.append(step(last)[-1])
        tokens.append(int(rows[-1].argmax()))
        last = [tokens[-1]]
    return tokens, rows


def parting(want: list[int], rows: list[Array], got: list[int]) -> dict[str, Any]:
    """Where ``got`` first leaves the reference's greedy tokens, and its margin there."""
    at = next((n for n, pair in enumerate(zip(want, got, strict=True)) if pair[0] != pair[1]), None)
    if at is None:
        return {"equal_tokens": len(want)}
    second, first = np.sort(rows[at])[-2:]
    return {"equal_tokens": at, "margin": float(first - second)}


def draft_steps(
    target: ProbedModel, draft: DraftModel, continue_greedily: Greedy, prompts: list[list[int]]
) -> list[int]:
    """Accepted drafts of every step behind ``prompts``."""
    accepted: list[int] = []
    for prompt in prompts:
        tokens = np.array([*prompt, *continue_greedily(prompt)])
        target.forward(tokens)
        taps = np.stack([target.sums[n] for n in draft.config.target_layers], axis=1)
        accepted += speculate(draft, taps, tokens, len(prompt))
    return accepted
