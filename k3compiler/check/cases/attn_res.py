"""AttnRes cases: candidates of different sizes, scores that leave more than one of them alive."""

from __future__ import annotations

from typing import Any

import numpy as np

from k3compiler.check.case import MEMORY, TOLERANCE, Case, Params, poisoned
from k3compiler.check.cases.gemm import normal
from k3compiler.reference.attn_res import attn_res_mix
from k3compiler.reference.norms import rms_norm


def attn_res_mix_norm(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    shape = (sizes.get("T", 7), params["cols"])
    dtype, eps, m = params["dtype"], params["eps"], params["num_snapshots"]
    arguments: dict[str, Any] = {f"b{i}": normal(rng, shape, dtype, 1 + i) for i in range(m)}
    terms = {"none": ("p",), "add": ("p", "delta"), "assign": ("delta",)}[
        params.get("delta", "none")
    ]
    arguments |= {name: normal(rng, shape, dtype, 2.0) for name in terms}
    if m:
        arguments["res_norm"] = (1 + normal(rng, shape[1:], "f32", 0.3)).astype(MEMORY[dtype])
        arguments["res_proj"] = normal(rng, shape[1:], dtype, shape[1] ** -0.5)
    arguments["norm_w"] = (1 + normal(rng, shape[1:], "f32", 0.3)).astype(MEMORY[dtype])
    exact = {name: value.astype(np.float64) for name, value in arguments.items()}
    total = sum(arguments[name].astype(np.float32) for name in terms)
    total = np.asarray(total).astype(MEMORY[dtype]).astype(np.float64)
    mix = total
    if m:
        candidates = [*(exact[f"b{i}"] for i in range(m)), total]
        mix = attn_res_mix(candidates, exact["res_norm"], exact["res_proj"], eps)
    expected = {"y": rms_norm(mix, exact["norm_w"], eps)}
    if params.get("write_sum"):
        expected["p_out"] = total
    arguments |= {name: poisoned(shape, dtype) for name in expected}
    return Case(arguments, expected, TOLERANCE[dtype])


def add_norm(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    plain = {"num_snapshots": 0, "delta": "add", "write_sum": True}
    return attn_res_mix_norm({**params, **plain}, rng, sizes)
