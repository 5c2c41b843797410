"""Passes by name, and pipelines as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.ir import verify_module
from k3compiler.passes.base import Pass, with_options

PASSES: dict[str, str] = {
    "partition": "k3compiler.passes.partition:Partition",
    "fuse-router": "k3compiler.passes.fuse_router:FuseRouter",
    "fuse-attn-res": "k3compiler.passes.fuse_attn_res:FuseAttnRes",
    "fuse-kda-inputs": "k3compiler.passes.fuse_kda_inputs:FuseKdaInputs",
    "chunk-kda": "k3compiler.passes.chunk_kda:ChunkKda",
    "fuse-kda-decode": "k3compiler.passes.fuse_kda_decode:FuseKdaDecode",
    "fuse-latent-write": "k3compiler.passes.fuse_latent_write:FuseLatentWrite",
    "convert-mla-expanded": "k3compiler.passes.convert_mla:ConvertMlaExpanded",
    "convert-mla-absorbed": "k3compiler.passes.convert_mla:ConvertMlaAbsorbed",
    "fuse-gate": "k3compiler.passes.fuse_gate:FuseGate",
    "fuse-residual": "k3compiler.passes.fuse_residual:FuseResidual",
    "fuse-moe": "k3compiler.passes.fuse_moe:FuseMoe",
    "quantize-moe": "k3compiler.passes.quantize_moe:QuantizeMoe",
    "fuse-sort": "k3compiler.passes.fuse_sort:FuseSort",
    "fuse-requantize": "k3compiler.passes.fuse_requantize:FuseRequantize",
    "fuse-projections": "k3compiler.passes.fuse_projections:FuseProjections",
    "fuse-query-norm": "k3compiler.passes.fuse_query_norm:FuseQueryNorm",
    "fuse-part-norm": "k3compiler.passes.fuse_part_norm:FusePartNorm",
    "fuse-activation": "k3compiler.passes.fuse_activation:FuseActivation",
    "verify-level": "k3compiler.passes.levels:VerifyLevel",
}

AfterPass = Callable[[Pass, Any], None]


def pass_class(name: str) -> type[Pass]:
    """The class of a pass.

    Raises:
        K3Error: K3-P001 for a name that is not in the table.
    """
    if name not in PASSES:
        near = get_close_matches(name, PASSES, 1)
        hint = f"did you mean {near[0]}?" if near else ""
        raise K3Error("K3-P001", where=name, expected=", ".join(PASSES), found=name, hint=hint)
    module, symbol = PASSES[name].split(":")
    return getattr(import_module(module), symbol)


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Passes from text, ``a,b{option=value,option=value}``.

    Raises:
        K3Error: K3-P001 for an unknown pass, K3-P002 for an unknown or malformed option.
    """
    return tuple(_parse_pass(item) for item in _items(text))


def _items(text: str) -> list[str]:
    """Split at commas outside braces."""
    items, depth = [""], 0
    for char in text:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            items.append("")
        else:
            items[-1] += char
    return [item.strip() for item in items if item.strip()]


def _parse_pass(item: str) -> Pass:
    name, brace, rest = item.partition("{")
    if brace and not rest.endswith("}"):
        raise K3Error("K3-P002", where=item, expected="name{option=value}", found="no closing }")
    options: dict[str, str] = {}
    for part in rest.removesuffix("}").split(","):
        if part.strip():
            key, equals, value = part.partition("=")
            if not equals:
                raise K3Error("K3-P002", where=item, expected="option=value", found=part.strip())
            options[key.strip()] = value.strip()
    return with_options(pass_class(name.strip()), options)


def run_passes(
    module: Any,
    passes: Iterable[Pass],
    *,
    after: AfterPass | None = None,
    verify_each: bool = True,
) -> None:
    """Runs passes in order on a module, in place.

    Args:
        after: called as ``after(pass, module)`` behind every pass (printing, timing).
        verify_each: verify after every pass; else only at the end.

    Raises:
        K3Error: from a pass, or K3-V001 where a pass leaves a module that does not verify.
    """
    for step in passes:
        step.run(module)
        if verify_each:
            verify_module(module, where=f"after {step.name}")
        if after is not None:
            after(step, module)
    if not verify_each:
        verify_module(module, where="after the last pass")
