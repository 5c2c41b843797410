"""From a kernel family and its static parameters to a tile program."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.ops import Tile
from k3compiler.ir.bindings import ir

Param = int | float | str | bool | list[Any] | None

# family -> "module:function"; the function takes the Program and the parameters by keyword
FAMILIES: dict[str, str] = {
    "add": "k3compiler.kernels.elementwise:add",
    "act_mul": "k3compiler.kernels.activation:act_mul",
    "add_norm": "k3compiler.kernels.attn_res:add_norm",
    "attn_res_mix_norm": "k3compiler.kernels.attn_res:attn_res_mix_norm",
    "beside": "k3compiler.kernels.beside:beside",
    "embed": "k3compiler.kernels.embed:embed",
    "gemm": "k3compiler.kernels.gemm:gemm",
    "gemm_few": "k3compiler.kernels.gemm_few:gemm_few",
    "head_gemm": "k3compiler.kernels.gemm:head_gemm",
    "mla_decode": "k3compiler.kernels.mla_decode:mla_decode",
    "mla_gather": "k3compiler.kernels.mla_latent:mla_gather",
    "mla_latent_write": "k3compiler.kernels.mla_latent:mla_latent_write",
    "mla_merge": "k3compiler.kernels.mla_decode:mla_merge",
    "mla_prefill": "k3compiler.kernels.mla_prefill:mla_prefill",
    "argmax": "k3compiler.kernels.logits:argmax",
    "gather_rows": "k3compiler.kernels.logits:gather_rows",
    "sample_border": "k3compiler.kernels.sample:sample_border",
    "sample_draw": "k3compiler.kernels.sample:sample_draw",
    "sample_pick": "k3compiler.kernels.sample:sample_pick",
    "gemv": "k3compiler.kernels.gemv:gemv",
    "norm_gemv": "k3compiler.kernels.norm_gemv:norm_gemv",
    "rms_norm": "k3compiler.kernels.norm:rms_norm",
    "decode_metadata": "k3compiler.kernels.step_metadata:decode_metadata",
    "prefill_metadata": "k3compiler.kernels.step_metadata:prefill_metadata",
    "kda_decode": "k3compiler.kernels.kda_decode:kda_decode",
    "moe_topk": "k3compiler.kernels.moe_route:moe_topk",
    "kda_inputs": "k3compiler.kernels.kda_inputs:kda_inputs",
    "kda_conv_state": "k3compiler.kernels.kda_inputs:kda_conv_state",
    "kda_prepare": "k3compiler.kernels.kda_prepare:kda_prepare",
    "kda_segment_maps": "k3compiler.kernels.kda_segments:kda_segment_maps",
    "kda_scan": "k3compiler.kernels.kda_segments:kda_scan",
    "kda_output": "k3compiler.kernels.kda_output:kda_output",
    "moe_route": "k3compiler.kernels.moe_route:moe_route",
    "moe_choose": "k3compiler.kernels.moe_few:moe_choose",
    "moe_group": "k3compiler.kernels.moe_few:moe_group",
    "moe_count": "k3compiler.kernels.moe_route:moe_count",
    "moe_offsets": "k3compiler.kernels.moe_route:moe_offsets",
    "moe_scatter": "k3compiler.kernels.moe_route:moe_scatter",
    "moe_gate_up": "k3compiler.kernels.moe_experts:moe_gate_up",
    "moe_down": "k3compiler.kernels.moe_experts:moe_down",
    "moe_gate_up_one": "k3compiler.kernels.moe_one:moe_gate_up_one",
    "moe_down_one": "k3compiler.kernels.moe_one:moe_down_one",
    "moe_combine": "k3compiler.kernels.moe_experts:moe_combine",
    "mx_quantize": "k3compiler.kernels.mx_quantize:mx_quantize",
    "mx_round": "k3compiler.kernels.mx_quantize:mx_round",
}


def family_body(family: str) -> Callable[..., None]:
    """The Python function that writes the body of a family's program."""
    module, _, name = FAMILIES[family].partition(":")
    return getattr(importlib.import_module(module), name)


def build_program(
    family: str, params: Mapping[str, Param], *, symbol: str, label: str | None = None
) -> ir.Module:
    """The verified tile program of one kernel, in a context of its own.

    ``label`` names the source op and equation in every location (default: the family).
    """
    context = ir.Context()
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        Tile.load()
        program = Program(symbol, label or family)
        with program.body():
            family_body(family)(program, **params)
        return program.module
