"""Architectures drawn at random: heads, widths, experts, layer kinds, blocks; all compile, all are right."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from k3compiler.config import ModelConfig
from k3compiler.driver import compile_model
from k3compiler.package.safetensors_map import CheckpointFiles
from k3compiler.reference.model import ReferenceModel
from k3compiler.reference.random_checkpoint import make_checkpoint
from k3compiler.reference.tiny import TINY_CONFIGS, tiny_config
from k3compiler.runtime.engine import Engine
from tests.e2e.models import assert_agrees

pytestmark = [pytest.mark.t1, pytest.mark.slow]

LAYERS: Mapping[str, tuple[int, ...]] = {
    "hidden_dim": (36, 60, 64, 96, 136),
    "dense_dim": (52, 100, 160),
}
KDA = {"num_heads": (1, 2, 3, 5), "head_dim": (8, 16, 20, 32, 48, 64, 128)}
MLA = {
    "num_heads": (1, 2, 3, 5),
    "kv_lora_rank": (20, 32, 36, 64, 96),
    "nope_dim": (8, 12, 16, 32),
    "rope_dim": (4, 6, 8, 16),
    "v_dim": (8, 14, 16, 32),
}
PACKED_WIDTHS, PLAIN_WIDTHS = (32, 64, 96), (20, 32, 40, 48, 96)


def random_config(seed: int) -> ModelConfig:
    """A family and sizes of its own for every part."""
    rng = random.Random(seed)

    def pick(choices: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        return {name: rng.choice(values) for name, values in choices.items()}

    base = tiny_config(rng.choice(sorted(TINY_CONFIGS)))
    assert base.moe is not None
    is_plain = base.moe.latent_dim is None or rng.random() < 0.5
    widths, num_experts = PLAIN_WIDTHS if is_plain else PACKED_WIDTHS, rng.randint(4, 37)
    moe = replace(
        base.moe,
        num_experts=num_experts,
        top_k=rng.randint(1, min(6, num_experts)),
        num_shared=rng.randint(0, 3),
        expert_dim=rng.choice(widths),
        latent_dim=None if base.moe.latent_dim is None else rng.choice(widths),
        expert_format="plain" if is_plain else "mxfp4",
        renormalize=rng.random() < 0.7,
    )
    kda = replace(base.kda, **pick(KDA))
    num_layers = rng.randint(2, 6)
    return replace(
        base,
        **pick(LAYERS),
        vocab_size=rng.choice((101, 173, 512, 1000)),
        num_layers=num_layers,
        num_dense=1,
        mla_layers=tuple(sorted(rng.sample(range(1, num_layers), rng.randint(1, num_layers // 2)))),
        attn_res_block=None if base.attn_res_block is None else rng.randint(1, 5),
        kda=replace(kda, a_log_size=kda.num_heads),
        mla=replace(base.mla, **pick(MLA)),
        moe=moe,
    )


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(2, 20))]
)
def test_a_random_architecture(tmp_path: Path, seed: int) -> None:
    config = random_config(seed)
    make_checkpoint(
        tmp_path / "model", config, seed, wrapper=config.name == "kimi_k3", num_shards=2
    )
    compile_model(str(tmp_path / "model"), target="cpu", out=tmp_path / "package")
    tokens = np.random.default_rng(seed).integers(0, config.vocab_size, 150).tolist()
    want = ReferenceModel(config, CheckpointFiles(tmp_path / "model")).forward(tokens)
    engine = Engine(
        tmp_path / "package", tmp_path / "model", max_context=256, num_threads=2, poison=True
    )
    for chunks in (None, [7], [1], [64, 1, 63]):
        assert_agrees(engine.logits(tokens, chunks=chunks), want)
    engine.close()
