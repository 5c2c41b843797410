"""Small models, batches and states that the meaning tests share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.check.step_arrays import decode_arrays, prefill_arrays
from k3compiler.config import ModelConfig
from k3compiler.graph.build import build_graph
from k3compiler.ir import print_module
from k3compiler.passes.meaning import interpret
from k3compiler.passes.pipelines import LoweringOptions, Phase, pipeline
from k3compiler.passes.registry import run_passes
from k3compiler.reference.random_checkpoint import random_tensors
from k3compiler.reference.tiny import tiny_config
from k3compiler.runtime.step import SeqChunk

Array = NDArray[Any]
PAGE_TOKENS, SLOTS, PAGES = 8, 6, 20
OPTIONS = LoweringOptions(chunk_tokens=16, split_tokens=16, block_rows=16)


@dataclass(frozen=True)
class Case:
    """A model, one step's inputs (states included) and the checkpoint."""

    config: ModelConfig
    inputs: dict[str, Array]
    weights: dict[str, Array]

    def graph(self) -> Any:
        return build_graph(self.config, page_tokens=PAGE_TOKENS)

    def run(self, module: Any) -> dict[str, Array]:
        return interpret(module, self.inputs, self.weights)


@cache
def case(name: str, phase: Phase) -> Case:
    """Two or three sequences of uneven lengths, with and without context; used slots hold noise."""
    config = {"wide": wide_experts}.get(name, lambda: tiny_config(name))()
    rng = np.random.default_rng(7)
    first, second = (rng.integers(0, config.vocab_size, n, np.int32) for n in (30, 11))
    if phase == "prefill":
        chunks = [
            SeqChunk(first, 0, 2, [3, 5, 7, 9], logits="all", checkpoints={16: 5}),
            SeqChunk(second, 20, 4, [11, 2, 6, 10]),
        ]
        sizes = {"page_columns": 7, "page_tokens": PAGE_TOKENS}
        arrays = prefill_arrays(chunks, **sizes, chunk_tokens=16, segment_chunks=1)
    else:
        chunks = [
            SeqChunk(first[:1], 37, 2, [3, 5, 7, 9, 1]),
            SeqChunk(second[:1], 0, 4, [11]),
            SeqChunk(second[1:2], 16, 1, [2, 6, 12]),
        ]
        arrays = decode_arrays(chunks, page_columns=7, page_tokens=PAGE_TOKENS, num_rows=4)
    inputs = arrays | states(config, rng)
    return Case(config, inputs, dict(random_tensors(config, 0)))


@cache
def fused(name: str, phase: Phase) -> tuple[str, dict[str, Array]]:
    """A model's level-2 text, and what its graph gives."""
    chosen = case(name, phase)
    module = chosen.graph()
    expected = chosen.run(module)
    run_passes(module, pipeline(phase, OPTIONS), verify_each=False)
    return print_module(module), expected


def wide_experts() -> ModelConfig:
    """Experts wide enough to be cut over four ranks, and a vocabulary that four divides."""
    config = tiny_config("spec")
    assert config.moe is not None
    return replace(config, vocab_size=212, moe=replace(config.moe, expert_dim=128))


def states(config: ModelConfig, rng: np.random.Generator) -> dict[str, Array]:
    """State buffers full of noise, large enough to show where it is read by mistake."""
    kda, mla = config.kda, config.mla
    found: dict[str, Array] = {}
    for layer in range(config.num_layers):
        if config.is_mla(layer):
            shape = (PAGES, PAGE_TOKENS, mla.kv_lora_rank + mla.rope_dim)
            found[f"mla_cache.{layer}"] = rng.normal(size=shape)
            continue
        shape = (SLOTS, kda.num_heads, kda.head_dim, kda.head_dim)
        found[f"kda_state.{layer}"] = rng.normal(size=shape)
        channels = 3 * kda.num_heads * kda.head_dim
        found[f"kda_conv.{layer}"] = rng.normal(size=(SLOTS, kda.conv_size - 1, channels))
    return found


def difference(expected: dict[str, Array], found: dict[str, Array]) -> float:
    """The largest difference over all results; what owns nothing (slot 0, page 0) counts too."""
    assert expected.keys() == found.keys()
    return max(float(np.abs(expected[name] - found[name]).max()) for name in expected)
