"""The whole model: pieces equal the whole, choices are recorded and forced, types hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from k3compiler.package.safetensors_map import CheckpointFiles
from k3compiler.reference.model import ExpertChoices, ReferenceModel
from k3compiler.reference.random_checkpoint import make_checkpoint, random_tensors
from k3compiler.reference.tiny import TINY_CONFIGS, tiny_config

TOKENS = np.random.default_rng(2).integers(0, 170, 41)


def model(name: str, dtype: type = np.float64) -> ReferenceModel:
    config = tiny_config(name)
    return ReferenceModel(config, dict(random_tensors(config, 5)), dtype)


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_pieces_of_a_sequence_equal_the_whole(name: str) -> None:
    reference = model(name)
    whole = reference.forward(TOKENS)
    for pieces in ([7] * 6, [1] * 41, [40, 1]):
        cache, at, parts = reference.new_cache(), 0, []
        for size in pieces:
            parts.append(reference.forward(TOKENS[at : at + size], cache))
            at += size
        assert np.abs(np.concatenate(parts) - whole).max() < 1e-11
        assert cache.num_tokens == len(TOKENS)


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_logits_are_a_few_units_wide_and_float32_is_near(name: str) -> None:
    wide, narrow = model(name).forward(TOKENS), model(name, np.float32).forward(TOKENS)
    assert 1.5 < wide.std() < 2.5
    assert narrow.dtype == np.float32 and np.abs(narrow - wide).max() < 3e-4


def test_cache_shapes() -> None:
    reference, config = model("odd"), tiny_config("odd")
    cache = reference.new_cache()
    reference.forward(TOKENS, cache)
    heads, dim = config.kda.num_heads, config.kda.head_dim
    assert set(cache.mla_rows) == set(config.mla_layers)
    assert {s.shape for s in cache.kda_state.values()} == {(heads, dim, dim)}
    assert {s.shape for s in cache.kda_conv.values()} == {(3, 3 * heads * dim)}
    row = config.mla.kv_lora_rank + config.mla.rope_dim
    assert {r.shape for r in cache.mla_rows.values()} == {(len(TOKENS), row)}


def test_choices_are_recorded_and_forced() -> None:
    reference = model("spec")
    own = ExpertChoices()
    logits = reference.forward(TOKENS, choices=own)
    assert sorted(own.chosen) == list(range(1, 9)) and own.chosen[1].shape == (41, 3)
    again = reference.forward(TOKENS, choices=ExpertChoices(forced=own.chosen))
    assert np.array_equal(again, logits)
    other = {8: (own.chosen[8] + 1) % 10}
    forced = ExpertChoices(forced=other)
    assert not np.allclose(reference.forward(TOKENS, choices=forced), logits)
    assert np.array_equal(forced.chosen[8], other[8])


def test_the_a_log_tail_is_never_read() -> None:
    config = tiny_config()
    tensors = dict(random_tensors(config, 5))
    want = ReferenceModel(config, tensors).forward(TOKENS)
    for name, tensor in tensors.items():
        if name.endswith("A_log"):
            tensor[config.kda.num_heads :] = np.nan
    assert np.array_equal(ReferenceModel(config, tensors).forward(TOKENS), want)


def test_packed_and_unpacked_experts_give_the_same_bits(tmp_path: Path) -> None:
    from k3compiler.dtypes import unpack_mxfp4

    config = make_checkpoint(tmp_path, tiny_config(), 1, wrapper=True)
    files = CheckpointFiles(tmp_path)
    plain = {}
    for name in files.names():
        if name.endswith("_packed"):
            base = name.removesuffix("_packed")
            plain[base] = unpack_mxfp4(files.read(name), files.read(f"{base}_scale"))
        elif not name.endswith("_scale"):
            plain[name] = files.read(name)
    packed = ReferenceModel(config, files).forward(TOKENS)
    assert np.array_equal(ReferenceModel(config, plain).forward(TOKENS), packed)


def test_checkpoints_are_deterministic_and_seeds_differ(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_checkpoint(tmp_path / name, tiny_config(), seed)
    a, b, c = ((tmp_path / n / "model.safetensors").read_bytes() for n in "abc")
    assert a == b != c


def test_tied_embeddings() -> None:
    from dataclasses import replace

    config = replace(tiny_config("linear"), tie_embeddings=True)
    tensors = dict(random_tensors(config, 5))
    assert "lm_head.weight" not in tensors
    assert ReferenceModel(config, tensors).forward(TOKENS).shape == (41, 211)
