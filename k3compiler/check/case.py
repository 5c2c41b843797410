"""A check case: fresh random arguments for one kernel, and what the reference says must come out."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Params = Mapping[str, Any]

# family -> "module:function"; the function is called as f(params, rng, sizes) -> Case
CASES: dict[str, str] = {
    "add": "k3compiler.check.cases.elementwise:add",
    "act_mul": "k3compiler.check.cases.activation:act_mul",
    "add_norm": "k3compiler.check.cases.attn_res:add_norm",
    "attn_res_mix_norm": "k3compiler.check.cases.attn_res:attn_res_mix_norm",
    "beside": "k3compiler.check.cases.beside:beside",
    "embed": "k3compiler.check.cases.embed:embed",
    "gemm": "k3compiler.check.cases.gemm:gemm",
    "gemm_few": "k3compiler.check.cases.gemm:gemv",
    "gemv": "k3compiler.check.cases.gemm:gemv",
    "head_gemm": "k3compiler.check.cases.gemm:head_gemm",
    "mla_decode": "k3compiler.check.cases.mla_decode:mla_decode",
    "mla_gather": "k3compiler.check.cases.mla_latent:mla_gather",
    "mla_latent_write": "k3compiler.check.cases.mla_latent:mla_latent_write",
    "mla_merge": "k3compiler.check.cases.mla_decode:mla_merge",
    "mla_prefill": "k3compiler.check.cases.mla_prefill:mla_prefill",
    "argmax": "k3compiler.check.cases.logits:argmax",
    "gather_rows": "k3compiler.check.cases.logits:gather_rows",
    "sample_border": "k3compiler.check.cases.sample:sample_border",
    "sample_draw": "k3compiler.check.cases.sample:sample_draw",
    "sample_pick": "k3compiler.check.cases.sample:sample_pick",
    "norm_gemv": "k3compiler.check.cases.norm:norm_gemv",
    "rms_norm": "k3compiler.check.cases.norm:rms_norm",
    "decode_metadata": "k3compiler.check.cases.step_metadata:decode_metadata",
    "prefill_metadata": "k3compiler.check.cases.step_metadata:prefill_metadata",
    "kda_decode": "k3compiler.check.cases.kda_decode:kda_decode",
    "moe_topk": "k3compiler.check.cases.moe_route:moe_topk",
    "kda_inputs": "k3compiler.check.cases.kda_prefill:kda_inputs",
    "kda_conv_state": "k3compiler.check.cases.kda_prefill:kda_conv_state",
    "kda_prepare": "k3compiler.check.cases.kda_prefill:kda_prepare",
    "kda_segment_maps": "k3compiler.check.cases.kda_prefill:kda_segment_maps",
    "kda_scan": "k3compiler.check.cases.kda_prefill:kda_scan",
    "kda_output": "k3compiler.check.cases.kda_prefill:kda_output",
    "moe_route": "k3compiler.check.cases.moe_route:moe_route",
    "moe_choose": "k3compiler.check.cases.moe_route:moe_choose",
    "moe_group": "k3compiler.check.cases.moe_route:moe_group",
    "moe_count": "k3compiler.check.cases.moe_route:moe_count",
    "moe_offsets": "k3compiler.check.cases.moe_route:moe_offsets",
    "moe_scatter": "k3compiler.check.cases.moe_route:moe_scatter",
    "moe_gate_up": "k3compiler.check.cases.moe_experts:moe_gate_up",
    "moe_down": "k3compiler.check.cases.moe_experts:moe_down",
    "moe_gate_up_one": "k3compiler.check.cases.moe_experts:moe_gate_up_one",
    "moe_down_one": "k3compiler.check.cases.moe_experts:moe_down_one",
    "moe_combine": "k3compiler.check.cases.moe_experts:moe_combine",
    "mx_quantize": "k3compiler.check.cases.moe_experts:mx_quantize",
    "mx_round": "k3compiler.check.cases.moe_experts:mx_round",
}

MEMORY = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.uint8),
}
# relative Frobenius error against float64 on the same inputs (design 7)
TOLERANCE = {"f32": 2e-5, "bf16": 5e-3, "e4m3": 5e-3}


@dataclass(frozen=True)
class Case:
    """Arguments of one launch and the expected contents of what it writes.

    ``arguments`` maps every buffer to an array of its exact memory dtype and shape (outputs are poisoned:
    NaN, or 0x7f bytes for integers) and every scalar that is not a symbol to a number. ``expected`` maps outputs to
    float64 (or exact integer) arrays; ``where`` optionally restricts an output to a boolean mask of elements that count
    (the rest must keep the poison when ``keeps`` names the output). ``tolerances`` are of outputs that have their own.
    """

    arguments: Mapping[str, Any]
    expected: Mapping[str, Array]
    tolerance: float
    where: dict[str, Array] = field(default_factory=dict)
    keeps: frozenset[str] = frozenset()
    tolerances: Mapping[str, float] = field(default_factory=dict[str, float])


def poisoned(shape: tuple[int, ...], dtype: str) -> Array:
    """An output buffer no kernel result can be mistaken for."""
    kind = MEMORY[dtype]
    if kind.kind in "iu":
        return np.full(shape, np.frombuffer(b"\x7f" * kind.itemsize, kind)[0], kind)
    return np.full(shape, np.nan, kind)


def make_case(
    family: str, params: Params, rng: np.random.Generator, sizes: Mapping[str, int] | None = None
) -> Case:
    """Fresh inputs for one kernel; ``sizes`` overrides symbol values (``T``, ``S``, ...)."""
    module, _, name = CASES[family].partition(":")
    return getattr(importlib.import_module(module), name)(params, rng, dict(sizes or {}))


@dataclass(frozen=True)
class Verdict:
    """How far one output is from what it should be; ``error`` is relative Frobenius (or wrong elements)."""

    output: str
    error: float
    passed: bool
    note: str = ""


def judge(case: Case, results: Mapping[str, Array]) -> list[Verdict]:
    """Compares the buffers after a launch with the case's expectations."""
    verdicts: list[Verdict] = []
    for name, want in case.expected.items():
        got = results[name]
        mask = case.where.get(name, np.ones(want.shape, bool))
        if want.dtype.kind in "iub":
            wrong = int(np.sum((got != want) & mask))
            verdict = Verdict(
                name, float(wrong), wrong == 0, f"{wrong} wrong elements" if wrong else ""
            )
        else:
            tolerance = case.tolerances.get(name, case.tolerance)
            verdict = _judge_float(name, got.astype(np.float64), want, mask, tolerance)
        if verdict.passed and name in case.keeps:
            verdict = _judge_untouched(verdict, got, mask)
        verdicts.append(verdict)
    return verdicts


def _judge_float(name: str, got: Array, want: Array, mask: Array, tolerance: float) -> Verdict:
    if not np.array_equal(np.isnan(got[mask]), np.isnan(want[mask])):
        return Verdict(name, float("nan"), False, "NaN where a number belongs, or the reverse")
    finite = mask & np.isfinite(want)
    if not np.array_equal(got[mask & ~finite], want[mask & ~finite], equal_nan=True):
        return Verdict(name, float("nan"), False, "an infinity that should be another value")
    norm = float(np.linalg.norm(want[finite]))
    error = float(np.linalg.norm(got[finite] - want[finite])) / (norm or 1.0)
    return Verdict(name, error, error <= tolerance)


def _judge_untouched(verdict: Verdict, got: Array, mask: Array) -> Verdict:
    rest = got[~mask]
    untouched = (
        rest == rest.dtype.type(0x7F7F7F7F)
        if rest.dtype == np.int32
        else np.isnan(rest.astype(np.float64))
    )
    if bool(np.all(untouched)):
        return verdict
    return Verdict(verdict.output, verdict.error, False, "wrote outside its elements")
