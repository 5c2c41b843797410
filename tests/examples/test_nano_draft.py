"""The committed draft is a whole, strict checkpoint of spec section 9.2 that fits its target."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from k3compiler.draft_config import draft_tensors, load_draft_config
from k3compiler.dtypes import numpy_dtype
from k3compiler.graph.checkpoint import load_checkpoint_config
from k3compiler.package.safetensors_map import CheckpointFiles

EXAMPLES = Path(__file__).parents[2] / "examples"
NANO, DRAFT = EXAMPLES / "k3-nano", EXAMPLES / "k3-nano-dspark"
NANO_SPECIALS = 4096  # the first special id


def test_the_draft_loads_strictly() -> None:
    files = CheckpointFiles(DRAFT)
    expected = draft_tensors(load_draft_config(DRAFT))
    tensors = {name: files.read(name) for name in files.names()}
    assert {name: tensor.shape for name, tensor in tensors.items()} == expected
    assert {tensor.dtype for tensor in tensors.values()} == {numpy_dtype("bf16")}
    assert all(np.isfinite(tensor.astype(np.float32)).all() for tensor in tensors.values())
    assert sum(path.stat().st_size for path in DRAFT.iterdir()) <= 8_000_000


def test_the_draft_fits_its_target() -> None:
    target, config = load_checkpoint_config(NANO), load_draft_config(DRAFT)
    assert (config.vocab_size, config.target_dim) == (target.vocab_size, target.hidden_dim)
    assert config.block == 7 and len(config.target_layers) >= 3
    assert max(config.target_layers) < target.num_layers
    assert NANO_SPECIALS <= config.mask_id < target.vocab_size
    own = CheckpointFiles(DRAFT).read("embed_tokens.weight")
    (name,) = [n for n in CheckpointFiles(NANO).names() if n.endswith("embed_tokens.weight")]
    assert np.array_equal(own, CheckpointFiles(NANO).read(name))
