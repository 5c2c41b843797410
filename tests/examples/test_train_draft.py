"""The draft: the training model is the reference's, it learns, resumes and exports."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from k3compiler.draft_config import draft_tensors, load_draft_config
from k3compiler.reference.dspark import DraftModel

ROOT = Path(__file__).parents[2]
torch = pytest.importorskip("torch", reason="torch is not installed")
sys.path.insert(0, str(ROOT))

from examples.train.draft import DraftTrainer, Options, main  # noqa: E402
from examples.train.draft_model import (  # noqa: E402
    DraftNet,
    new_draft_parameters,
    smoke_draft_config,
)
from examples.train.draft_score import walk  # noqa: E402
from examples.train.export import checkpoint_bytes, config_text  # noqa: E402
from examples.train.initial import initialise  # noqa: E402
from examples.train.shape import smoke_config  # noqa: E402
from examples.train.shards import write_shard  # noqa: E402
from examples.train.weights import Weights  # noqa: E402

STEPS, STOP = 30, 12


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _random_net(seed: int) -> DraftNet:
    """Every tensor random, the ones that start at zero too."""
    config = smoke_draft_config(smoke_config())
    parameters = new_draft_parameters(config, torch.device("cpu"), torch.float32, seed)
    source = torch.Generator().manual_seed(seed + 1)
    for _, view in parameters.parts():
        view.add_(0.1 * torch.randn(view.shape, generator=source))
    parameters.publish()
    embed, head = (torch.randn(config.vocab_size, 64, generator=source) for _ in range(2))
    return DraftNet(config, parameters, embed, head)


def test_blocks_are_the_references() -> None:
    net = _random_net(3)
    c = net.config
    weights = {n: v.detach().numpy() for n, v in net.parameters.parts()}
    weights |= {"embed_tokens.weight": net.embed.numpy(), "lm_head.weight": net.head.numpy()}
    reference = DraftModel(c, weights)
    source = torch.Generator().manual_seed(5)
    taps = torch.randn(1, 20, len(c.target_layers) * c.target_dim, generator=source)
    anchors, tokens = torch.tensor([[1, 9, 13]]), torch.tensor([[17, 900, 4000]])
    with torch.no_grad():
        hidden = net.hidden(taps, anchors, tokens)
        drafts = net.propose(taps, anchors, tokens)
    for n in range(anchors.shape[1]):
        cache = reference.new_cache()
        reference.extend(cache, taps[0, : anchors[0, n]].numpy())
        want = reference.propose(int(tokens[0, n]), cache)
        assert np.allclose(
            hidden[0, n].numpy(), reference.block_hidden(int(tokens[0, n]), cache), atol=1e-4
        )
        assert drafts[0, n].tolist() == want.tokens.tolist()
        previous = torch.tensor([int(tokens[0, n]), *want.tokens[:-1].tolist()])
        with torch.no_grad():
            logits, confidence = net.logits(hidden[0, n], previous)
        assert np.allclose(logits.numpy(), want.logits, atol=1e-4)
        assert np.allclose(torch.sigmoid(confidence).numpy(), want.confidence, atol=1e-5)


def test_a_walk_starts_behind_the_bonus() -> None:
    assert walk([2, 9, 9, 0, 1, 9, 7]) == [2, 0, 1, 7]
    assert walk([]) == []


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random target, and our own sources as bytes."""
    directory = tmp_path_factory.mktemp("draft-data")
    text = b"\n".join(p.read_bytes() for p in sorted((ROOT / "k3compiler").rglob("*.py")))
    tokens = np.frombuffer(text, np.uint8).astype(np.uint16)
    write_shard(directory / "train-code-000.u16.xz", tokens[5000:60000])
    for kind in ("code", "prose"):
        write_shard(directory / f"heldout-{kind}-000.u16.xz", tokens[:5000])
    weights = Weights(smoke_config(), torch.device("cpu"))
    initialise(weights, 4)
    head = weights.masters["lm_head.weight"]
    head.copy_(0.2 * torch.randn(head.shape, generator=torch.Generator().manual_seed(6)))
    (directory / "model.safetensors").write_bytes(checkpoint_bytes(weights))
    (directory / "config.json").write_text(config_text(weights.config))
    return directory


def _options(data: Path, out: Path, stop_at: int | None = None) -> Options:
    return Options(
        data=data,
        target=data,
        out=out,
        state=out / "state",
        steps=STEPS,
        batch_tokens=256,
        short=128,
        long=256,
        every=8,
        warmup=4,
        is_smoke=True,
        stop_at=stop_at,
        prompts=2,
        prompt=48,
        count=16,
    )


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run in two pieces."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("draft-out")
    assert not main(_options(data, out, STOP))["is_done"]
    assert main(_options(data, out))["is_done"]
    return out


@pytest.mark.slow
def test_it_learns(trained: Path) -> None:
    metrics = json.loads((trained / "metrics.json").read_text())
    losses = metrics["losses"]
    assert len(losses) == STEPS
    assert np.mean(losses[-4:]) < np.mean(losses[:2]) - 0.3
    assert 1 <= metrics["code"]["tokens_per_step"] <= 8


@pytest.mark.slow
def test_two_pieces_are_one_run(data: Path, trained: Path, tmp_path: Path) -> None:
    trainer = DraftTrainer(_options(data, tmp_path, STOP + 2))
    trainer.run()
    losses = json.loads((trained / "metrics.json").read_text())["losses"]
    assert np.allclose(torch.stack(trainer.history)[:, 0], losses[: STOP + 2], atol=2e-3)


@pytest.mark.slow
def test_the_export_is_a_draft_checkpoint(trained: Path) -> None:
    config = load_draft_config(trained)
    assert config == smoke_draft_config(smoke_config())
    tensors = load_file(trained / "model.safetensors")
    assert {n: t.shape for n, t in tensors.items()} == draft_tensors(config)
    assert {str(t.dtype) for t in tensors.values()} == {"bfloat16"}
