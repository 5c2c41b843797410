"""Our kernels beside the public ones: a plug-in of the peers' harness.

    python bench/peer_kernels.py KERNELS h200 [PACKAGE...]                 where the compiler is
    K3C_PEER_KERNELS=KERNELS python peers.py --plugin bench/peers_ours.py \\
        --groups kda_decode,attnres,router,gemm,mla,moe                    where the GPU is

Kernels are launched as the runtime does it, through a launch table over the package's own plan steps, each with an
early start where it waits for its former by itself. Inputs are the peers'; weights of the experts are re-laid as the
package's weights.json says.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from k3compiler.config import MoeConfig
from k3compiler.dtypes import numpy_dtype
from k3compiler.package.expr import evaluate
from k3compiler.package.manifest import KernelRecord, LaunchStep, Plan
from k3compiler.package.pitches import dense_pitches
from k3compiler.package.reader import Package
from k3compiler.runtime.device.launch_table import LaunchTable
from k3compiler.runtime.device.select import open_device
from k3compiler.runtime.weights import ShuffleSource, StackSource, parse_source

DECODE_TOKENS = 64  # rows that the decode kernels are meant for
TORCH = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "i8": torch.uint8,
    "e4m3": torch.float8_e4m3fn,
}
Run = Callable[..., Any]
Tensors = dict[str, Any]  # by argument name: a tensor, or a list of which launch i takes the i-th


class Part:
    """One package of the folder, loaded on a device of its own."""

    def __init__(self, path: Path) -> None:
        self.package = Package.open(path)
        self.kernels = {k.symbol: k for k in self.package.manifest.kernels}
        self.device = open_device(None, self.package.manifest.target)
        self.device.load(self.package)
        self.params = {f"w:{p.name}": p for p in self.package.weights.params}
        self.constants = {"rank": 0, **dense_pitches(self.package.manifest)}

    def steps(
        self, phase: str, wanted: Callable[[LaunchStep, KernelRecord], bool]
    ) -> list[LaunchStep]:
        steps = (s for s in self.package.plan(phase).steps if isinstance(s, LaunchStep))
        return [s for s in steps if wanted(s, self.kernels[s.launch])]


_parts: list[Part] = []


def parts() -> list[Part]:
    if not _parts:
        folder = Path(os.environ["K3C_PEER_KERNELS"])  # noqa: TID251
        _parts.extend(Part(p.parent) for p in sorted(folder.glob("*/manifest.json")))
    return _parts


def find(
    phase: str,
    wanted: Callable[[LaunchStep, KernelRecord], bool],
    *,
    moe: str | None = None,
) -> tuple[Part, list[LaunchStep]]:
    """The first part that has such launches, and those."""
    for part in parts():
        if moe in (None, part.package.manifest.moe) and (steps := part.steps(phase, wanted)):
            return part, steps
    raise NotImplementedError("the package has no kernel of this shape")


class Segment:
    """Some launches of a plan: what they read from outside is given by argument name, the rest is memory of ours."""

    def __init__(
        self,
        part: Part,
        phase: str,
        steps: Sequence[LaunchStep],
        given: Tensors,
        sizes: Mapping[str, int],
        *,
        turns: int,
    ) -> None:
        self.part, self.steps = part, list(steps)
        self.plan: Plan = part.package.plan(phase)
        self.symbols = {**part.constants, **sizes}
        self.dev = next(t for t in _flat(given.values())).device
        self.turns = turns
        self.places: dict[str, Any] = {}
        self.outputs: Tensors = {}
        for arg, name in self._arguments():
            if name in self.places and arg.access == "r":
                continue
            outside = arg.access != "w"
            if name not in self.places:
                self.places[name] = (
                    self._outside(arg, name, given) if outside else self._memory(name)
                )
            if arg.access == "w":
                self.outputs[arg.name] = self.places[name]
                self.last = self.places[name]
        self._programs: list[Any] = [self._program(turn) for turn in range(turns)]

    def _arguments(self) -> Iterator[tuple[Any, str]]:
        for step in self.steps:
            for arg, name in zip(self.part.kernels[step.launch].args, step.args, strict=True):
                if arg.kind == "buffer":
                    yield arg, name

    def _outside(self, arg: Any, name: str, given: Tensors) -> Any:
        assert arg.name in given or name in given, f"nothing given for {arg.name} ({name})"
        value = given.get(name, given.get(arg.name))
        for tensor in _flat([value]):
            assert tensor.dtype == TORCH[arg.dtype], (
                f"{arg.name}: {tensor.dtype}, {arg.dtype} wanted"
            )
            assert tensor.is_contiguous(), arg.name
            if name in self.part.params and name in given:
                continue  # laid out as weights.json says
            assert len(tensor.shape) == len(arg.shape), (
                f"{arg.name}: {tuple(tensor.shape)}, {arg.shape}"
            )
            fixed = zip(tensor.shape, arg.shape, strict=True)
            assert all(n == e for n, e in fixed if isinstance(e, int)), (
                f"{arg.name}: {tensor.shape}"
            )
        return value

    def _memory(self, name: str) -> Any:
        record = next(b for b in self.plan.buffers if b.name == name)
        shape = tuple(evaluate(e, self.symbols) for e in record.shape)
        size = int(np.prod(shape)) * numpy_dtype(record.dtype).itemsize
        poison = torch.full((size,), 0xFF, dtype=torch.uint8, device=self.dev)
        return poison.view(TORCH[record.dtype]).view(shape)

    def _program(self, turn: int) -> Any:
        names = list(self.places)
        device = self.part.device
        table = LaunchTable(
            self.steps,
            self.part.kernels,
            {n: i for i, n in enumerate(names)},
            hidden_slots=device.hidden_slots,
        )
        chosen = [p[turn % len(p)] if isinstance(p, list) else p for p in self.places.values()]
        table.bind(np.array([t.data_ptr() for t in chosen], np.int64))
        table.patch(self.symbols)
        return device.program(table)

    def run(self, turn: int) -> Any:
        """Launches turn ``turn`` on the current stream; returns the last output."""
        program = self._programs[turn % self.turns]
        if self.part.device.name.startswith("cuda"):
            program._launch([], _Chained())  # as in the middle of a decode step
        else:
            program.run([], None)
        return self.last


class _Chained:
    """Every launch follows another one on the current stream."""

    def enter(self, launch: int) -> tuple[int, bool]:
        return int(torch.cuda.current_stream().cuda_stream), True

    def leave(self, launch: int, *, launched: bool) -> None:
        del launch, launched


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, list) else [value]


def _step_sizes(tokens: int, **more: int) -> dict[str, int]:
    return {"T": tokens, "S": tokens, "R": tokens, **more}


def _rel_err(out: Any, ref: Any) -> float:
    o, r = out.double(), ref.double()
    return (
        ((o - r).norm() / r.norm().clamp_min(1e-30)).item()
        if torch.isfinite(o).all()
        else float("nan")
    )


# -- KDA decode -------------------------------------------------------------------------------
def kda_decode(x: Mapping[str, Any]) -> tuple[Run, Run]:
    """The peers' decay logits are given as the product of unit rows and a weight, where the step makes them itself."""
    heads, batch, dim = x["H"], x["B"], x["H"] * 128
    part, steps = find("decode", lambda s, k: s.op == "kda.decode" and k.params["heads"] == heads)
    params = part.kernels[steps[0].launch].params
    rows = torch.zeros(batch, params["in_cols"], dtype=torch.bfloat16, device=x["x"].device)
    pieces = {
        "q_offset": x["x"][:, :dim],
        "k_offset": x["x"][:, dim : 2 * dim],
        "v_offset": x["x"][:, 2 * dim :],
    }
    pieces |= {"beta_offset": x["raw_beta"][0], "gate_offset": x["gate"].reshape(batch, -1)}
    f, rank = x["raw_g"][0].reshape(batch, -1).contiguous(), params.get("rank", batch)
    if batch > rank:
        raise NotImplementedError("more sequences than the decay's rank")
    pieces["low_offset"] = torch.eye(batch, rank, device=rows.device)
    for key, piece in pieces.items():
        if params.get(key) is not None:
            rows[:, params[key] : params[key] + piece.shape[1]] = piece
    given = {
        "x": rows,
        "f": f,
        "f_w": torch.nn.functional.pad(f.T, (0, rank - batch)).contiguous(),
        "gate": pieces["gate_offset"].contiguous(),
        "conv_w": x["w"].contiguous(),
        "a_log": x["A_log"],
        "dt_bias": x["dt_bias"],
        "norm_w": x["norm_w"],
        "seq_ctx": torch.full((batch,), 5, dtype=torch.int32, device=rows.device),
        "seq_slot": x["idx"],
    }

    def segment(state: Any, conv: Any, turns: int) -> Segment:
        pools = {"kda_state": state, "kda_conv": conv.transpose(1, 2)}
        sizes = _step_sizes(batch, SLOTS=state.shape[0])
        return Segment(part, "decode", steps, given | pools, sizes, turns=turns)

    whole = segment(x["state"], x["conv"], x["ns"])

    def run(i: int) -> Any:
        return whole.run(i)

    def check() -> float:
        state, conv = x["state"].clone(), x["conv"].transpose(1, 2).clone().transpose(1, 2)
        at = x["idx"][0].long()
        state[at], conv[at] = x["s0"], x["c0"]
        out = segment(state, conv, 1).run(0)
        want, new_state, _, window, _ = x["ref"]
        error = max(_rel_err(out.reshape(want.shape), want), _rel_err(state[at], new_state))
        return error if _rel_err(conv[at], window) <= 1e-6 else max(error, 1.0)

    return run, check


# -- AttnRes ----------------------------------------------------------------------------------
def attn_res(x: Mapping[str, Any]) -> tuple[Run, Run]:
    tokens, snapshots = x["T"], x["nb"]
    phase = "decode" if tokens <= DECODE_TOKENS else "prefill"

    def wanted(step: LaunchStep, kernel: KernelRecord) -> bool:
        if not step.op.startswith("attn_res.") or kernel.params.get("delta") != "none":
            return False
        return kernel.params.get("num_snapshots") == snapshots

    part, steps = find(phase, wanted)
    kept: dict[int, list[Any]] = {}

    def bank_rows(bank: Any) -> list[Any]:
        if id(bank) not in kept:
            kept[id(bank)] = [bank[:, j].contiguous() for j in range(snapshots)]
        return kept[id(bank)]

    banks = [bank_rows(b) for b in x["bank"]]
    given: Tensors = {f"b{j}": [b[j] for b in banks] for j in range(snapshots)}
    given |= {"p": x["prefix"], "res_norm": x["norm_w"], "res_proj": x["qk"], "norm_w": x["out_w"]}
    whole = Segment(part, phase, steps, given, _step_sizes(tokens), turns=x["ns"])
    return whole.run, lambda: _rel_err(whole.run(0)[x["rows"]], x["ref"])


# -- MLA decode -------------------------------------------------------------------------------
def mla_decode(x: Mapping[str, Any]) -> tuple[Run, Run]:
    batch, heads, context = x["B"], x["H"], x["L"]

    def wanted(step: LaunchStep, kernel: KernelRecord) -> bool:
        return step.op in ("mla.decode", "mla.merge") and kernel.params["heads"] == heads

    part, steps = find("decode", wanted)
    query = x["q"][:, 0]
    rotated = torch.zeros(batch, heads, 192, dtype=query.dtype, device=query.device)
    rotated[..., 128:] = query[..., 512:]
    given = {
        "q_lat": query[..., :512].contiguous(),
        "q": rotated,
        "mla_cache": x["kv"].view(-1, 64, 576),
        "page_table": [b.contiguous() for b in x["bt"]],
        "seq_ctx": torch.full((batch,), context - 1, dtype=torch.int32, device=query.device),
    }
    sizes = _step_sizes(batch, P=x["bt"][0].shape[1], PAGES=x["kv"].shape[0])
    whole = Segment(part, "decode", steps, given, sizes, turns=x["ns"])

    def check() -> float:
        return _rel_err(whole.run(0).reshape(batch, heads, 512)[x["rows"]], x["ref"])

    return whole.run, check


# -- products ---------------------------------------------------------------------------------
def skinny_gemm(x: Mapping[str, Any]) -> tuple[Run, Run]:
    part, steps = find("decode", _is_product(x["N"], x["K"]))
    whole = _product(part, _of_one_weight(part, steps), x)
    return whole.run, lambda: _rel_err(whole.run(0), x["x"].double() @ x["w"][0].double().T)


def _is_product(n: int, k: int) -> Callable[[LaunchStep, KernelRecord], bool]:
    def wanted(step: LaunchStep, kernel: KernelRecord) -> bool:
        params = kernel.params
        return step.op == "k3.linear" and (params.get("N"), params.get("K")) == (n, k)

    return wanted


def _of_one_weight(part: Part, steps: Sequence[LaunchStep]) -> list[LaunchStep]:
    """The first product's launches: there may be one for few tokens and one for more, of which a step has one."""

    def weight(step: LaunchStep) -> str:
        args = part.kernels[step.launch].args
        return next(v for a, v in zip(args, step.args, strict=True) if a.name == "w")

    return [s for s in steps if weight(s) == weight(steps[0])]


def _product(part: Part, steps: list[LaunchStep], x: Mapping[str, Any]) -> Segment:
    params = part.kernels[steps[0].launch].params
    rows = torch.zeros(x["M"], params["in_cols"], dtype=torch.bfloat16, device=x["x"].device)
    first = params.get("in_offset", 0)
    rows[:, first : first + x["K"]] = x["x"]
    given = {
        "x": rows,
        "w": x["w"],
        "r": torch.zeros(x["M"], x["N"], dtype=torch.bfloat16, device=rows.device),
    }
    return Segment(
        part, "decode", steps, given | x.get("more", {}), _step_sizes(x["M"]), turns=x["ns"]
    )


# -- router -----------------------------------------------------------------------------------
def _routing(tokens: int) -> Callable[[LaunchStep, KernelRecord], bool]:
    """What chooses experts: moe_route with one token, moe_choose with a few where the plan has them, else moe_topk."""
    wanted = "moe_route" if tokens == 1 else "moe_choose" if tokens <= 64 else "moe_topk"
    known = {k.family for p in parts() for k in p.kernels.values()}
    family = wanted if wanted in known else "moe_topk"
    return lambda step, kernel: kernel.family == family


def _router_check(segment: Segment, logits: Any, bias: Any) -> float:
    segment.run(0)
    score = logits.double().sigmoid()
    ids = (score + bias.double()).topk(16, -1).indices
    want = torch.zeros_like(score).scatter_(1, ids, score.gather(1, ids))
    want /= want.sum(-1, keepdim=True)
    got = torch.zeros_like(want)
    chosen = segment.outputs
    got.scatter_(1, chosen["ids"].long(), chosen["weights"].double())
    return _rel_err(got / got.sum(-1, keepdim=True), want)


def router(x: Mapping[str, Any]) -> tuple[Run, Run]:
    """Top 16 of given logits; with one token the sort by expert as well."""
    part, steps = find("decode", _routing(x["M"]))
    given = {"logits": x["s"], "bias": x["bias"]}
    whole = Segment(part, "decode", steps[:1], given, _step_sizes(x["M"]), turns=x["ns"])

    def run(i: int) -> Any:
        whole.run(i)
        return whole.outputs["weights"], whole.outputs["ids"]

    return run, lambda: _router_check(whole, x["s"][0], x["bias"])


def router_with_product(x: Mapping[str, Any]) -> tuple[Run, Run]:
    """From the hidden rows: the router's product and the choice."""
    tokens, dev = x["M"], x["bias"].device
    if tokens > DECODE_TOKENS:
        raise NotImplementedError("decode kernels only")
    choose = _routing(tokens)

    part, chosen = find("decode", choose)
    width = part.package.manifest.config.hidden_dim
    products = part.steps("decode", _is_product(x["s"][0].shape[1], width))
    steps = [*_of_one_weight(part, products), chosen[0]]
    rows = torch.randn(tokens, width, device=dev).to(torch.bfloat16)
    count = x["s"][0].shape[1]
    weights = [
        (torch.randn(count, width, device=dev) * width**-0.5).to(torch.bfloat16) for _ in range(16)
    ]
    more = {"bias": x["bias"]}
    whole = _product(
        part,
        steps,
        {"M": tokens, "N": count, "K": width, "x": rows, "w": weights, "more": more, "ns": 16},
    )

    def run(i: int) -> Any:
        return whole.run(i)

    return run, lambda: _router_check(whole, rows.double() @ weights[0].double().T, x["bias"])


# -- experts ----------------------------------------------------------------------------------
_EXPERT = re.compile(r"experts\.(\d+)\.(w[123])\.(weight_packed|weight_scale)$")


class PeerExperts:
    """The peers' stacked experts as a checkpoint's tensors: what ``runtime/weights.py`` asks a loader for."""

    def __init__(self, weights: Mapping[str, Any], full_inner: int) -> None:
        self.inner, self.latent, self.full_inner = weights["N"], weights["K"], full_inner
        host = {k: weights[k].cpu().numpy() for k in ("w13", "s13", "w2", "s2")}
        self.by_name = {
            ("w1", "weight_packed"): host["w13"][:, : self.inner],
            ("w3", "weight_packed"): host["w13"][:, self.inner :],
            ("w2", "weight_packed"): host["w2"],
            ("w1", "weight_scale"): host["s13"][:, : self.inner],
            ("w3", "weight_scale"): host["s13"][:, self.inner :],
            ("w2", "weight_scale"): host["s2"],
        }

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        _, matrix, kind = self._parsed(name)
        rows, columns = (
            (self.latent, self.full_inner) if matrix == "w2" else (self.full_inner, self.latent)
        )
        return rows, columns // (2 if kind == "weight_packed" else 32)

    def copy(self, name: str, index: tuple[slice, ...], out: Any) -> None:
        del index  # the peers have this rank's slice already
        expert, matrix, kind = self._parsed(name)
        out[...] = self.by_name[matrix, kind][expert]

    @staticmethod
    def _parsed(name: str) -> tuple[int, str, str]:
        match = _EXPERT.search(name)
        assert match, f"{name} is no expert's"
        return int(match[1]), match[2], match[3]


def _fill(source: Any, loader: Any, out: Any) -> None:
    """As ``source.write``, an expert a thread."""
    parts = [source]
    if isinstance(source, StackSource):
        parts = list(source.parts)
    elif isinstance(source, ShuffleSource) and isinstance(source.of, StackSource):
        parts = [ShuffleSource(source.layout, part) for part in source.of.parts]
    targets = [out] if parts == [source] else list(out)
    with ThreadPoolExecutor(16) as pool:
        list(
            pool.map(lambda each: each[0].write(loader, each[1]), zip(parts, targets, strict=True))
        )


def _moe(part: Part) -> MoeConfig:
    moe = part.package.manifest.config.moe
    assert moe is not None
    return moe


def _expert_weights(part: Part, names: set[str], weights: Any) -> Tensors:
    """Device arrays of the package's parameters, kept in the harness's dictionary for the next row."""
    key = f"k3compiler {part.package.path.name}"
    if key not in weights:
        for other in [
            k for k in weights if k in ("h8", "h16", "marlin", "tk") or k.startswith("k3compiler ")
        ]:
            del weights[other]
        loader: Any = PeerExperts(weights, _moe(part).expert_dim)
        made: Tensors = {}
        for name in sorted(names):
            param = part.params[name]
            out = np.empty(param.shape, numpy_dtype(param.dtype))
            _fill(parse_source(param.source, {"rank": 0}), loader, out)
            made[name] = torch.from_numpy(out.view(np.uint8)).to(weights["w13"].device)
        weights[key] = made
    return weights[key]


def experts(form: str) -> Callable[..., tuple[Run, Run]]:
    def build(weights: Any, problem: Mapping[str, Any]) -> tuple[Run, Run]:
        tokens = problem["M"]
        if tokens > DECODE_TOKENS:
            raise NotImplementedError("decode kernels only")
        part, steps = _expert_steps(weights, form, tokens)
        names = {a for s in steps for a in s.args if a.startswith("w:") and ".experts." in a}
        ids, shares = problem["ids"], problem["wt"].float().contiguous()
        given: Tensors = {"x": problem["x"], "ids": ids, "weights": shares}
        if any(part.kernels[s.launch].family in ("moe_route", "moe_choose") for s in steps):
            total = _moe(part).num_experts
            given["logits"] = [_logits(i, shares, total) for i in ids]
            given["bias"] = torch.zeros(total, device=shares.device)
        given |= _expert_weights(part, names, weights)
        whole = Segment(part, "decode", steps, given, _step_sizes(tokens), turns=problem["ns"])

        def run(i: int) -> Any:
            return whole.run(i)

        setattr(run, "note", f"{problem['touched']} experts hit, {len(steps)} launches")  # noqa: B010
        return run, lambda: _rel_err(whole.run(0)[problem["rows"]], problem["ref"])

    return build


def _expert_steps(weights: Any, form: str, tokens: int) -> tuple[Part, list[LaunchStep]]:
    """The launches of one layer's experts. Peers are given the choice, so one that says nothing else is left out."""

    def fits(kernel: KernelRecord) -> bool:
        sizes = (kernel.params.get("experts"), kernel.params.get("inner"))
        return kernel.family == "moe_gate_up" and sizes == (weights["E"], weights["N"])

    part, _ = find("decode", lambda s, k: fits(k), moe=form)
    sizes = {**part.constants, **_step_sizes(tokens)}

    def wanted(step: LaunchStep, kernel: KernelRecord) -> bool:
        if not step.op.startswith(("moe.", "mx.")) or kernel.family == "moe_topk":
            return False
        return all(evaluate(e, sizes) for e in step.grid)

    return part, part.steps("decode", wanted)


def _logits(ids: Any, shares: Any, total: int) -> Any:
    """Logits whose chosen experts and renormalised scores are the given ones."""
    score = 0.9 * shares / shares.max(-1, keepdim=True).values
    out = torch.full((len(ids), total), -30.0, device=shares.device)
    return out.scatter_(1, ids.long(), torch.log(score / (1 - score)))


PEERS = {
    "kda_decode": {"k3compiler (1 launch)": kda_decode},
    "attn_res": {"k3compiler": attn_res},
    "mla_decode": {"k3compiler": mla_decode},
    "skinny_gemm": {"k3compiler": skinny_gemm},
    "router": {"k3compiler": router, "k3compiler GEMM + top 16": router_with_product},
    "moe": {"k3compiler W4A16": experts("a16w4"), "k3compiler W4A8 fp8": experts("a8w4")},
}
