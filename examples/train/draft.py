"""Train k3-nano's DSpark draft on the target's outputs.

    python -m examples.train.draft --data .train-data --target examples/k3-nano --out OUT \
        --steps 2000

The target reads held-in text; at random anchors the draft proposes seven tokens and learns the
target's distribution and first choice behind each. A position counts in full where the text up to
it is what the target would have written, else little. Resumable like the target's training.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.train.data import Windows
from examples.train.draft_export import draft_bytes, draft_config_text
from examples.train.draft_model import (
    DraftNet,
    nano_draft_config,
    new_draft_parameters,
    smoke_draft_config,
)
from examples.train.draft_score import acceptance, tapped_rows
from examples.train.export import load_checkpoint
from examples.train.model import Model, Trace
from examples.train.optimizer import Optimizer
from examples.train.runner import StepRunner
from examples.train.shards import read_shards
from examples.train.weights import Weights
from k3compiler.config import ModelConfig
from k3compiler.graph.checkpoint import load_checkpoint_config

DECAY_FROM = 0.4  # of the steps: constant rate before, straight down to 0 after
LONG_FROM = 0.85  # of the steps: long windows after, at about twice the time
LONG_COST = 2.0
POSITION_DECAY = 0.9
OFF_PATH = 0.2  # weight of a position that the target would not have come to
HARD = 0.5  # share of the first choice against the whole distribution
MEASURED = (20, 60)  # steps whose time sets the number of steps
STATE_FILE = "draft.pt"


@dataclass(frozen=True, slots=True)
class Options:
    """A run. With ``budget`` (seconds), ``steps`` is chosen from the first steps' speed."""

    data: Path
    target: Path
    out: Path
    state: Path
    steps: int
    budget: float | None = None
    seed: int = 21
    batch_tokens: int = 16384
    short: int = 2048
    long: int = 8192
    every: int = 4  # one anchor in so many tokens
    warmup: int = 100
    max_seconds: float = 1e9
    is_smoke: bool = False
    graph: bool = True
    stop_at: int | None = None
    prompts: int = 32
    prompt: int = 256
    count: int = 256


class DraftTrainer:
    """The frozen target, the draft, its optimizer and the data of one run."""

    def __init__(self, options: Options) -> None:
        self.options, self.steps = options, options.steps
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.use_graph = options.graph and self.device.type == "cuda"
        kind = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        config: ModelConfig = load_checkpoint_config(options.target)
        weights = Weights(config, self.device, kind)
        load_checkpoint(options.target / "model.safetensors", weights)
        self.target = Model(weights)
        self.config = (smoke_draft_config if options.is_smoke else nano_draft_config)(config)
        self.parameters = new_draft_parameters(self.config, self.device, kind, options.seed)
        self.optimizer = Optimizer(self.parameters)
        embed, head = (weights[n] for n in ("model.embed_tokens.weight", "lm_head.weight"))
        self.net = DraftNet(self.config, self.parameters, embed, head)
        tokens = torch.from_numpy(read_shards(options.data, "train").astype("int16"))
        self.tokens = tokens.to(self.device)
        self.step = 0
        self.history: list[Tensor] = []
        block = torch.arange(self.config.block, device=self.device)
        self._span, self._decay = block, POSITION_DECAY ** block.float()

    def batch(self, step: int, length: int, windows: Windows) -> Tensor:
        """Windows and anchors of a step: ``[B, length + A]``, positions behind tokens."""
        o = self.options
        count = o.batch_tokens // length
        tokens = windows.batch(step * count, count)[:, :-1]
        source = torch.Generator().manual_seed(o.seed * 1_000_003 + step)
        last = length - self.config.block
        anchors = torch.randint(1, last + 1, (count, length // o.every), generator=source)
        return torch.cat([tokens, anchors.to(self.device)], dim=1)

    def train_step(self, batch: Tensor) -> Tensor:
        """One update: ``[B, T + A]`` -> ``[3]``: loss, confidence loss, share of right drafts."""
        length = batch.shape[1] * self.options.every // (self.options.every + 1)
        tokens, anchors = batch[:, :length].contiguous(), batch[:, length:].contiguous()
        loss, confidence_loss, accuracy = self.losses(tokens, anchors)
        (loss + confidence_loss).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack([loss, confidence_loss, accuracy]).detach()

    def losses(self, tokens: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``tokens [B, T]``, ``anchors [B, A]`` -> the three of :meth:`train_step`."""
        block = self.config.block
        taps, wanted = self._ask_target(tokens)
        positions = anchors[..., None] + self._span
        rows = torch.arange(len(tokens), device=self.device)[:, None, None] * tokens.shape[1]
        rows = (rows + positions).flatten()
        previous = tokens.flatten()[rows]
        wanted = wanted[rows]
        choice = wanted.argmax(-1)
        follows = previous.view(-1, block)[:, 1:] == choice.view(-1, block)[:, :-1]
        on_path = F.pad(follows.float(), (1, 0), value=1.0).cumprod(-1)
        weight = (self._decay * (OFF_PATH + (1 - OFF_PATH) * on_path)).flatten()
        hidden = self.net.hidden(taps, anchors, tokens.gather(1, anchors))
        logits, confidence = self.net.logits(hidden.flatten(0, 2), previous)
        loss = (both_losses(logits, wanted, choice) * weight).sum() / weight.sum()
        right = (logits.detach().argmax(-1) == choice).float()
        path = on_path.flatten()
        doubt = F.binary_cross_entropy_with_logits(confidence, right, path, reduction="sum")
        return loss, doubt / path.sum(), (right * path).sum() / path.sum()

    @torch.no_grad()
    def _ask_target(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Taps ``[B, T, layers * D]`` and logits ``[B*T, vocab]``."""
        trace = Trace(taps=self.config.target_layers)
        logits = self.target.logits(tokens, trace)
        return tapped_rows(trace, tokens), logits

    def run(self) -> bool:
        """Steps until the end or out of time; whether the end was reached."""
        began = time.perf_counter()
        while self.step < self._last():
            if not self._run_phase(began):
                return False
        return self.step >= self.steps

    def _last(self) -> int:
        stop = self.options.stop_at
        return self.steps if stop is None else min(stop, self.steps)

    def _phase_end(self) -> int:
        change = int(self.steps * LONG_FROM)
        return min(change if self.step < change else self.steps, self._last())

    def _run_phase(self, began: float) -> bool:
        o = self.options
        length = o.short if self.step < int(self.steps * LONG_FROM) else o.long
        windows = Windows(self.tokens, length, o.seed)
        runner = StepRunner(self.train_step, self.use_graph)
        mark, since = time.perf_counter(), self.step
        while self.step < self._phase_end():
            self.optimizer.scale.fill_(self._rate())
            self.history.append(runner(self.batch(self.step, length, windows)).clone())
            self.step += 1
            if self.step in (1, 2, 5, 10, *MEASURED) or self.step % 50 == 0:
                recent = torch.stack(self.history[max(since, self.step - 20) :]).mean(0).tolist()
                now = time.perf_counter()
                pace = (now - mark) / (self.step - since)
                print(
                    f"step {self.step}/{self.steps} T={length} loss {recent[0]:.4f} confidence "
                    f"{recent[1]:.4f} right {recent[2]:.3f} {pace * 1e3:.0f}ms {now - began:.0f}s",
                    flush=True,
                )
                if self.step == MEASURED[1] and o.budget is not None:
                    mean = LONG_FROM + (1 - LONG_FROM) * LONG_COST
                    self.steps = MEASURED[1] + int((o.budget - (now - began)) / pace / mean)
                mark, since = now, self.step
                if now - began > o.max_seconds:
                    return False
        return True

    def _rate(self) -> float:
        decay = (self.steps - self.step) / max(1, self.steps * (1 - DECAY_FROM))
        return min((self.step + 1) / self.options.warmup, 1.0, decay)

    def save(self) -> None:
        """The whole state, for a later piece."""
        self.options.state.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "steps": self.steps,
            "history": self.history,
            "masters": self.parameters.masters,
            "optimizer": self.optimizer.state(),
        }
        torch.save(state, self.options.state / STATE_FILE)

    def resume(self) -> bool:
        """Go on from a saved state; whether there was one."""
        path = self.options.state / STATE_FILE
        if not path.is_file():
            return False
        state: dict[str, Any] = torch.load(path, map_location=self.device)
        self.step, self.steps, self.history = state["step"], state["steps"], state["history"]
        self.options = replace(self.options, budget=None)
        for name, tensor in self.parameters.masters.items():
            tensor.copy_(state["masters"][name])
        self.optimizer.load_state(state["optimizer"])
        self.parameters.publish()
        return True

    def score(self, stem: str) -> dict[str, Any]:
        """Acceptance behind prompts spread over the held-out shards of ``stem``."""
        o = self.options
        tokens = torch.from_numpy(read_shards(o.data, stem).astype("int64"))
        starts = torch.arange(o.prompts) * ((len(tokens) - o.prompt) // o.prompts)
        prompts = tokens[starts[:, None] + torch.arange(o.prompt)].to(self.device)
        return acceptance(self.target, self.net, prompts, o.count, self.use_graph)


def both_losses(logits: Tensor, wanted: Tensor, choice: Tensor) -> Tensor:
    """Cross entropy to the target's choice and to its distribution, mixed: ``[N]`` float32.

    Shapes: ``logits, wanted [N, vocab]``, ``choice [N]``.
    """
    wide = logits.float()
    chosen = wide.gather(1, choice[:, None])[:, 0]
    expected = (torch.softmax(wanted.float(), dim=-1) * wide).sum(-1)
    return torch.logsumexp(wide, dim=-1) - HARD * chosen - (1 - HARD) * expected


def parse_options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--state", type=Path, default=None)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--budget", type=float, default=None)
    parser.add_argument("--max-seconds", type=float, default=1e9)
    parser.add_argument("--stop-at", type=int, default=None)
    parser.add_argument("--smoke", dest="is_smoke", action="store_true")
    parser.add_argument("--no-graph", dest="graph", action="store_false")
    for name in ("seed", "batch_tokens", "short", "long", "every", "warmup"):
        default = Options.__dataclass_fields__[name].default
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    values = vars(parser.parse_args())
    values["state"] = values["state"] or values["data"] / "state"
    return Options(**values)


def main(options: Options) -> dict[str, Any]:
    """One piece of training; writes the checkpoint and metrics as they stand at its end."""
    began = time.perf_counter()
    trainer = DraftTrainer(options)
    resumed = trainer.resume()
    print(f"{len(trainer.tokens) / 1e6:.1f}M tokens, resumed {resumed} at {trainer.step}")
    print(f"ready in {time.perf_counter() - began:.0f}s", flush=True)
    is_done = trainer.run()
    trainer.save()
    options.out.mkdir(parents=True, exist_ok=True)
    content = draft_bytes(trainer.config, trainer.parameters, trainer.net.embed)
    (options.out / "config.json").write_text(
        draft_config_text(trainer.config, trainer.target.config)
    )
    (options.out / "model.safetensors").write_bytes(content)
    history = torch.stack(trainer.history).cpu()
    metrics: dict[str, Any] = {"steps": trainer.step, "of": trainer.steps, "is_done": is_done}
    for n, name in enumerate(("losses", "confidence_losses", "right")):
        metrics[name] = [round(x, 4) for x in history[:, n].tolist()]
    if trainer.device.type == "cuda":
        metrics["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    for stem in ("code", "prose"):
        metrics[stem] = trainer.score(f"heldout-{stem}")
        print(stem, metrics[stem], flush=True)
    metrics["seconds"] = time.perf_counter() - began
    (options.out / "metrics.json").write_text(json.dumps(metrics))
    print(f"done {is_done}, {metrics['seconds']:.0f}s, {len(content) / 1e6:.2f} MB", flush=True)
    return metrics


if __name__ == "__main__":
    main(parse_options())
