"""Train k3-nano.

    python -m examples.train.target --data .train-data --out OUT --steps 6000

Resumable: the state is saved in ``--state`` every ``--save-every`` steps and at the end of a piece
(``--max-seconds``); a run that finds one there goes on from it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.train.compiled import enable_compile
from examples.train.data import Windows
from examples.train.export import checkpoint_bytes, config_text, write_parts
from examples.train.initial import initialise
from examples.train.model import Model, Trace, token_losses
from examples.train.moe import balanced_bias
from examples.train.optimizer import Optimizer
from examples.train.runner import StepRunner
from examples.train.shape import nano_config, smoke_config
from examples.train.shards import read_shards
from examples.train.weights import Weights

DECAY_FROM = 0.6  # of the steps: constant rate before, straight down to 0 after
LONG_FROM = 0.8  # of the steps: long windows after
BIAS_RATE = 0.05
BIAS_SAMPLE = 8192
STATE_FILE = "target.pt"


@dataclass(frozen=True, slots=True)
class Options:
    """A run. ``batch_tokens`` is the same for short and long windows."""

    data: Path
    out: Path
    state: Path
    steps: int
    seed: int = 20
    batch_tokens: int = 65536
    short: int = 2048
    long: int = 8192
    warmup: int = 100
    max_seconds: float = 1e9
    save_every: int = 10**9
    is_smoke: bool = False
    profile: bool = False
    compile: bool = True
    graph: bool = True
    stop_at: int | None = None


def rate(step: int, steps: int, warmup: int) -> float:
    """The learning rate's factor: warm-up, plateau, straight line to 0."""
    decay = (steps - step) / max(1, steps * (1 - DECAY_FROM))
    return min((step + 1) / warmup, 1.0, decay)


class Trainer:
    """Weights, optimizer and data of one run, at some step."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        is_cuda = self.device.type == "cuda"
        config = smoke_config() if options.is_smoke else nano_config()
        self.weights = Weights(config, self.device, torch.bfloat16 if is_cuda else torch.float32)
        initialise(self.weights, options.seed)
        self.model, self.optimizer = Model(self.weights), Optimizer(self.weights)
        tokens = torch.from_numpy(read_shards(options.data, "train").astype("int16"))
        self.tokens = tokens.to(self.device)
        self.step = 0
        self.losses = torch.zeros(options.steps, device=self.device)
        layers = len(self.weights.bias)
        assert config.moe is not None
        self.peak_load = torch.zeros(layers, device=self.device)
        self._use_graph = options.graph and is_cuda
        enable_compile(options.compile and is_cuda)

    def train_step(self, batch: Tensor) -> Tensor:
        """Forward, backward, update, balance: ``batch [B, T+1]`` -> the mean loss."""
        trace = Trace()
        logits = self.model.logits(batch[:, :-1].contiguous(), trace)
        loss = token_losses(logits, batch[:, 1:].reshape(-1)).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._balance(trace)
        return loss.detach()

    @torch.no_grad()
    def _balance(self, trace: Trace) -> None:
        moe = self.weights.config.moe
        assert moe is not None
        peaks: list[Tensor] = []
        for name, bias in self.weights.bias.items():
            scores = trace.scores[name]
            sample = scores[:: max(1, len(scores) // BIAS_SAMPLE)]
            bias.lerp_(balanced_bias(sample, bias, moe.top_k), BIAS_RATE)
            load = trace.loads[name].float()
            peaks.append(load.max() / load.mean())
        self.peak_load.copy_(torch.stack(peaks))

    def phase(self) -> tuple[int, int, int]:
        """Window length now, the phase's first step and its end."""
        o = self.options
        change = int(o.steps * LONG_FROM)
        return (o.short, 0, change) if self.step < change else (o.long, change, o.steps)

    def run(self) -> bool:
        """Steps until the end or out of time; whether the end was reached."""
        began = time.perf_counter()
        last = self.options.stop_at or self.options.steps
        while self.step < last:
            if not self._run_phase(began, last):
                return False
        return self.step >= self.options.steps

    def _run_phase(self, began: float, last: int) -> bool:
        o = self.options
        length, first, end = self.phase()
        windows = Windows(self.tokens, length, o.seed)
        count = o.batch_tokens // length
        runner = StepRunner(self.train_step, self._use_graph)
        mark, since = time.perf_counter(), self.step
        while self.step < min(end, last):
            batch = windows.batch((self.step - first) * count, count)
            self.optimizer.scale.fill_(rate(self.step, o.steps, o.warmup))
            self.losses[self.step] = runner(batch)
            self.step += 1
            if self.step % 50 == 0 or self.step in (1, 2, 5, 10, 20):
                recent = self.losses[max(since, self.step - 20) : self.step].mean().item()
                now = time.perf_counter()
                speed = (self.step - since) * o.batch_tokens / (now - mark)
                mark, since = now, self.step
                print(
                    f"step {self.step} T={length} loss {recent:.4f} "
                    f"{speed / 1e3:.0f}k tok/s load {self.peak_load.max().item():.2f} "
                    f"{now - began:.0f}s",
                    flush=True,
                )
                if now - began > o.max_seconds:
                    return False
            if self.step % o.save_every == 0:
                self.save()
        return True

    def save(self) -> None:
        """The whole state, for a later piece."""
        self.options.state.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "losses": self.losses,
            "masters": self.weights.masters,
            "bias": self.weights.bias,
            "optimizer": self.optimizer.state(),
        }
        torch.save(state, self.options.state / STATE_FILE)

    def resume(self) -> bool:
        """Go on from a saved state; whether there was one."""
        path = self.options.state / STATE_FILE
        if not path.is_file():
            return False
        state: dict[str, Any] = torch.load(path, map_location=self.device)
        self.step = int(state["step"])
        self.losses[: self.step] = state["losses"][: self.step]
        for kept, saved in ((self.weights.masters, "masters"), (self.weights.bias, "bias")):
            for name, tensor in kept.items():
                tensor.copy_(state[saved][name])
        self.optimizer.load_state(state["optimizer"])
        self.weights.publish()
        return True


def profile(trainer: Trainer) -> None:
    """Print where the time of three (uncaptured) steps goes, after three to warm up."""
    o = trainer.options
    windows = Windows(trainer.tokens, o.short, o.seed + 1)
    count = o.batch_tokens // o.short
    for n in range(3):
        trainer.train_step(windows.batch(n * count, count))
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if trainer.device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profiler:
        for n in range(3):
            trainer.train_step(windows.batch(n * count, count))
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
    key = "self_cuda_time_total" if trainer.device.type == "cuda" else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=key, row_limit=45, max_name_column_width=70)
    print("\n".join(line[:72] + line[-110:] for line in table.splitlines()), flush=True)


@torch.no_grad()
def evaluate(trainer: Trainer, stem: str, length: int, max_windows: int) -> dict[str, Any]:
    """Loss per token, bits per byte and loss by position on held-out shards."""
    enable_compile(False)
    tokens = torch.from_numpy(read_shards(trainer.options.data, stem).astype("int64"))
    num_bytes = torch.tensor(json.loads((trainer.options.data / "token_bytes.json").read_text()))
    count = min(max_windows, (len(tokens) - 1) // length)
    losses: list[Tensor] = []
    for n in range(count):
        window = tokens[n * length : (n + 1) * length + 1].to(trainer.device)
        logits = trainer.model.logits(window[None, :-1])
        losses.append(token_losses(logits, window[1:]).cpu())
    loss = torch.stack(losses)
    total_bytes = num_bytes[tokens[1 : count * length + 1]].sum().item()
    cuts = [c for c in (0, 64, 256, 1024, 2048, 4096, 8192) if c <= length]
    by_position = {f"{a}-{b}": loss[:, a:b].mean().item() for a, b in pairwise(cuts)}
    enable_compile(trainer.options.compile and trainer.device.type == "cuda")
    bits = loss.sum().item() / 0.6931471805599453 / total_bytes
    return {
        "windows": count,
        "loss": loss.mean().item(),
        "bits_per_byte": bits,
        "by_position": by_position,
    }


def parse_options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--state", type=Path, default=None)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--batch-tokens", type=int, default=65536)
    parser.add_argument("--short", type=int, default=2048)
    parser.add_argument("--long", type=int, default=8192)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--max-seconds", type=float, default=1e9)
    parser.add_argument("--save-every", type=int, default=10**9)
    parser.add_argument("--stop-at", type=int, default=None)
    parser.add_argument("--smoke", dest="is_smoke", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--no-graph", dest="graph", action="store_false")
    values = vars(parser.parse_args())
    values["state"] = values["state"] or values["data"] / "state"
    return Options(**values)


def main(options: Options) -> dict[str, Any]:
    """One piece of training; writes metrics, and the checkpoint when it is the last."""
    began = time.perf_counter()
    trainer = Trainer(options)
    resumed = trainer.resume()
    print(
        f"{len(trainer.tokens) / 1e6:.1f}M tokens, resumed {resumed} at {trainer.step}", flush=True
    )
    if options.profile:
        profile(trainer)
        return {}
    is_done = trainer.run()
    trainer.save()
    metrics: dict[str, Any] = {
        "steps": trainer.step,
        "is_done": is_done,
        "seconds": time.perf_counter() - began,
        "peak_load": trainer.peak_load.tolist(),
        "losses": [round(x, 4) for x in trainer.losses[: trainer.step].tolist()],
    }
    if trainer.device.type == "cuda":
        metrics["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    length = options.long
    for stem in ("code", "prose"):
        metrics[stem] = evaluate(trainer, f"heldout-{stem}", length, 12)
        print(stem, metrics[stem], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "metrics.json").write_text(json.dumps(metrics))
    (options.out / "config.json").write_text(config_text(trainer.weights.config))
    write_parts(options.out, "model.safetensors", checkpoint_bytes(trainer.weights))
    print(f"done {is_done}, {metrics['seconds']:.0f}s, loss {metrics['losses'][-1:]}", flush=True)
    return metrics


if __name__ == "__main__":
    main(parse_options())
