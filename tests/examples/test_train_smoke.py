"""Training in small: it learns, resumes to the same numbers, and exports what the reference reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from k3compiler.graph.checkpoint import check_checkpoint, load_checkpoint_config
from k3compiler.reference.model import ReferenceModel

ROOT = Path(__file__).parents[2]
torch = pytest.importorskip("torch", reason="torch is not installed")
sys.path.insert(0, str(ROOT))

from examples.train.export import join_parts  # noqa: E402
from examples.train.shards import read_shard, write_shard  # noqa: E402
from examples.train.target import Options, Trainer, main  # noqa: E402

pytestmark = pytest.mark.slow
STEPS, STOP = 24, 10


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our own sources as bytes: ids 0 to 255."""
    directory = tmp_path_factory.mktemp("data")
    text = b"\n".join(p.read_bytes() for p in sorted((ROOT / "k3compiler").rglob("*.py")))
    tokens = np.frombuffer(text, np.uint8).astype(np.uint16)
    write_shard(directory / "train-code-000.u16.xz", tokens[5000:60000])
    for kind in ("code", "prose"):
        write_shard(directory / f"heldout-{kind}-000.u16.xz", tokens[:5000])
    (directory / "token_bytes.json").write_text(json.dumps([1] * 4352))
    return directory


def _options(data: Path, out: Path, stop_at: int | None = None) -> Options:
    return Options(
        data=data,
        out=out,
        state=out / "state",
        steps=STEPS,
        batch_tokens=1024,
        short=128,
        long=256,
        warmup=4,
        is_smoke=True,
        stop_at=stop_at,
    )


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run in two pieces."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("out")
    assert not main(_options(data, out, STOP))["is_done"]
    assert main(_options(data, out))["is_done"]
    return out


def test_it_learns(trained: Path) -> None:
    metrics = json.loads((trained / "metrics.json").read_text())
    assert len(metrics["losses"]) == STEPS
    assert metrics["losses"][-1] < metrics["losses"][0] - 2
    assert 0 < metrics["code"]["bits_per_byte"] < 9


def test_two_pieces_are_one_run(data: Path, trained: Path, tmp_path: Path) -> None:
    """The step after the break is the step that an unbroken run takes."""
    trainer = Trainer(_options(data, tmp_path, STOP + 2))
    trainer.run()
    losses = json.loads((trained / "metrics.json").read_text())["losses"]
    assert np.allclose(trainer.losses[: STOP + 2].numpy(), losses[: STOP + 2], atol=2e-3)


def test_the_export_is_a_checkpoint(trained: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(join_parts(trained, "model.safetensors"))
    (tmp_path / "config.json").write_bytes((trained / "config.json").read_bytes())
    config = load_checkpoint_config(tmp_path)
    check_checkpoint(tmp_path, config)
    trainer = Trainer(_options(data, trained))
    assert trainer.resume()
    ids = read_shard(data / "heldout-code-000.u16.xz")[:128].astype(np.int64)
    with torch.no_grad():
        got = trainer.model.logits(torch.tensor(ids)[None]).numpy()
    want = ReferenceModel(config, load_file(tmp_path / "model.safetensors")).forward(ids)
    # The export rounds to bf16 and top choices may flip: alike, not equal.
    assert np.corrcoef(got.ravel(), want.ravel())[0, 1] > 0.99
