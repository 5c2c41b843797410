"""The least bytes a kernel moves and the flops it does, as expressions over its own symbols.

Bytes default to every argument once (twice where it is updated in place), with the parts of a buffer that a
launch cannot touch left out; flops default to one an element written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from k3compiler.ir.tile_program import ArgumentInfo, describe
from k3compiler.kernels.base import build_program
from k3compiler.package.manifest import FloorRecord
from k3compiler.passes.lower_to_tile.builder import Kernel
from k3compiler.passes.lower_to_tile.refs import ITEM_BYTES

Params = dict[str, Any]


def floor_of(kernel: Kernel, *, num_experts: int) -> FloorRecord:
    """Bytes and flops of one launch; ``num_experts`` are those of all ranks together.

    A rank's experts get their share of the tokens' choices, as a balanced router gives it to them.
    """
    if kernel.family == "beside":
        parts = [floor_of(part, num_experts=num_experts) for part in _parts(kernel)]
        return FloorRecord(
            "+".join(str(p.bytes) for p in parts), "+".join(str(p.flops) for p in parts)
        )
    facts = kernel.params | {"num_experts": num_experts}
    count = FLOPS.get(kernel.family)
    flops = _written(kernel, facts) if count is None else count(facts)
    return FloorRecord("+".join(_bytes(kernel, facts)) or "0", flops)


def _parts(kernel: Kernel) -> list[Kernel]:
    """The kernels beside each other, each as it is alone."""
    made: list[Kernel] = []
    for family, params in kernel.params["parts"]:
        info = describe(build_program(family, params, symbol=kernel.symbol))
        made.append(replace(kernel, family=family, params=params, info=info))
    return made


def _bytes(kernel: Kernel, facts: Params) -> list[str]:
    return [
        f"{_times(argument)}*{_touched(kernel, argument, facts)}"
        for argument in kernel.info.arguments
        if argument.shape is not None
    ]


def _times(argument: ArgumentInfo) -> int:
    return ITEM_BYTES[argument.dtype] * (2 if argument.access == "rw" else 1)


def _touched(kernel: Kernel, argument: ArgumentInfo, facts: Params) -> str:
    """Elements of an argument that a launch must touch."""
    assert argument.shape is not None
    rows, *inner = (f"({_OWN_ROWS.get(n, n)})" for n in argument.shape)
    columns = "*".join(["1", *inner])
    leading = _ROWS.get((kernel.family, argument.name)) or _ANY_ROWS.get(argument.shape[0], rows)
    return f"{leading}*{columns}".format(**facts)


# Only the rows of a step's sequences are touched in the caches.
_ANY_ROWS: dict[int | str, str] = {"SLOTS": "S", "PAGES": "(S*P)"}
# Of an item of a cache, a layer's own part (package/pitches.py).
_OWN_ROWS: dict[int | str, str] = {
    "SLOT_HEADS": "{heads}",
    "SLOT_TAPS": "{conv_size}-1",
    "PAGE_ROWS": "{page_tokens}",
}
# What else a launch reads only in part: (family, argument) -> rows.
_PAIRS = "cdiv(T*{top_k}*{experts}, {num_experts})"
_EXPERTS_USED = f"min({{experts}}, {_PAIRS})"
_EXPERT_WEIGHTS = {
    "moe_gate_up": ("w1", "w3", "s1", "s3"),
    "moe_down": ("w2", "s2"),
    "moe_gate_up_one": ("w1", "w3", "s1", "s3"),
    "moe_down_one": ("w2", "s2"),
}
_ROWS: dict[tuple[str, str], str] = {
    ("decode_metadata", "record"): "(T+1)",  # of a step in which every row goes on
    ("decode_metadata", "page_table"): "0",
    ("embed", "table"): "T",
    ("gather_rows", "x"): "R",
    ("kda_conv_state", "x"): "(3*S)",
    ("kda_decode", "low"): "cdiv(T*{rank}, {low_cols})",
    ("mla_latent_write", "mla_cache"): "cdiv(T, 64)",
    ("moe_gate_up", "h"): _PAIRS,
    ("moe_gate_up", "h_scale"): _PAIRS,
    ("moe_gate_up", "pairs"): _PAIRS,
    ("moe_gate_up_one", "h"): _PAIRS,
    ("moe_down", "x"): _PAIRS,
    ("moe_down", "x_scale"): _PAIRS,
    ("moe_down", "pairs"): _PAIRS,
    ("moe_down", "y"): _PAIRS,
    ("moe_down_one", "x"): _PAIRS,
    ("moe_down_one", "pairs"): _PAIRS,
    ("moe_combine", "y"): _PAIRS,
} | {(family, name): _EXPERTS_USED for family, names in _EXPERT_WEIGHTS.items() for name in names}


def _written(kernel: Kernel, facts: Params) -> str:
    outputs = [a for a in kernel.info.arguments if a.shape is not None and a.access != "r"]
    return "+".join(_touched(kernel, a, facts) for a in outputs) or "0"


def _gemm(p: Params) -> str:
    products = 2 if p["epilogue"] in ("situ", "silu") else 1
    return f"{products * 2 * p['N'] * (p['K'] + p.get('K2', 0))}*T"


def _head_gemm(p: Params) -> str:
    return f"{2 * p['heads'] * p['N'] * p['K']}*T"


def _prepare(p: Params) -> str:
    """Scores, masks, inverse (about a third of a full product each) and two right-hand sides a chunk."""
    k, v, c = p["k_dim"], p["v_dim"], 64
    return f"{p['heads'] * (2 * c * c * k * 2 + 2 * c * c * (k + v) + 2 * c**3 // 3)}*NC"


def _output(p: Params) -> str:
    k, v, c = p["k_dim"], p["v_dim"], 64
    return f"{p['heads'] * (3 * 2 * c * k * v + 2 * c * c * v)}*NC"


def _segment_maps(p: Params) -> str:
    k, v, c = p["k_dim"], p["v_dim"], 64
    return f"{p['heads'] * 2 * 2 * c * k * (v + k)}*max(NC - S, 0)"


def _kda_decode(p: Params) -> str:
    return f"{p['heads'] * p['k_dim'] * (7 * p['v_dim'] + 2 * p.get('rank', 0))}*S"


def _mla_prefill(p: Params) -> str:
    """Half of the square is masked where the context is empty."""
    return f"{p['heads'] * 2 * (p['nope'] + p['rope'] + p['v']) // 2}*T*cdiv(KV, S)"


def _mla_decode(p: Params) -> str:
    return f"{p['heads'] * 2 * (2 * p['kv_lora'] + p['rope']) * p['page_tokens']}*S*P"


def _expert_products(p: Params, matrices: int) -> str:
    pairs = _PAIRS.format(**p)
    return f"{matrices * 2 * p['inner'] * p['width']}*{pairs}"


FLOPS: dict[str, Callable[[Params], str]] = {
    "gemm": _gemm,
    "gemm_few": _gemm,
    "gemv": _gemm,
    "norm_gemv": _gemm,
    "head_gemm": _head_gemm,
    "kda_prepare": _prepare,
    "kda_output": _output,
    "kda_segment_maps": _segment_maps,
    "kda_decode": _kda_decode,
    "moe_gate_up": lambda p: _expert_products(p, 2),
    "moe_down": lambda p: _expert_products(p, 1),
    "moe_gate_up_one": lambda p: _expert_products(p, 2),
    "moe_down_one": lambda p: _expert_products(p, 1),
    "mla_prefill": _mla_prefill,
    "mla_decode": _mla_decode,
}
