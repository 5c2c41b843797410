"""Grouped expert matrices in every format, both orders of operands, ragged widths."""

_UP = dict(experts=4, inner=72, width=96, top_k=3, block_rows=16, block_n=64, block_k=64)
_SITU = dict(activation="situ", beta=4.0, linear_beta=25.0)
_DOWN = dict(
    experts=4, inner=96, width=72, top_k=3, block_rows=16, block_n=64, block_k=64, block_choices=4
)
_ONE = {k: v for k, v in _DOWN.items() if k != "block_k"} | dict(
    format="a16w4", block_n=4, together=2
)

PROGRAMS = [
    (
        "moe_gate_up",
        dict(_UP, **_SITU, in_cols=130, in_offset=30, format="plain", swap=True, dtype="f32"),
        {"T": 11},
    ),
    (
        "moe_gate_up",
        dict(
            _UP,
            activation="silu",
            in_cols=96,
            in_offset=0,
            format="plain",
            swap=False,
            dtype="bf16",
        ),
        {"T": 20},
    ),
    (
        "moe_gate_up",
        dict(_UP, **_SITU, in_cols=130, in_offset=30, format="a16w4", swap=True, dtype="bf16"),
        {"T": 11},
    ),
    (
        "moe_gate_up",
        dict(_UP, **_SITU, in_cols=96, in_offset=0, format="a16w4", swap=False, dtype="f32"),
        {"T": 20},
    ),
    (
        "moe_gate_up",
        dict(_UP, **_SITU, in_cols=96, in_offset=0, format="a8w4", swap=True, dtype="bf16"),
        {"T": 11},
    ),
    (
        "moe_gate_up",
        dict(_UP, **_SITU, in_cols=96, in_offset=0, format="a8w4", swap=False, dtype="bf16"),
        {"T": 3},
    ),
    (
        "moe_gate_up",
        dict(_UP, **_SITU, in_cols=96, in_offset=0, format="a8w4", swap=True, dtype="e4m3")
        | dict(inner=96),
        {"T": 11},
    ),
    (
        "moe_gate_up",
        dict(
            _UP, activation="silu", in_cols=96, in_offset=0, format="a8w4", swap=False, dtype="e4m3"
        )
        | dict(inner=160),
        {"T": 20},
    ),
    (
        "moe_gate_up",
        dict(_UP, **_SITU, in_cols=96, in_offset=0, format="a16w4", swap=True, dtype="bf16")
        | dict(inner=96, rounds=True),
        {"T": 11},
    ),
    (
        "moe_gate_up",
        dict(_UP, activation="silu", in_cols=96, in_offset=0, format="plain", swap=False)
        | dict(inner=160, rounds=True, dtype="f32"),
        {"T": 20},
    ),
    ("moe_down", dict(_DOWN, format="plain", swap=True, dtype="f32", out_dtype="f32"), {"T": 11}),
    (
        "moe_down",
        dict(_DOWN, format="a16w4", swap=False, dtype="bf16", out_dtype="bf16"),
        {"T": 20},
    ),
    ("moe_down", dict(_DOWN, format="a16w4", swap=True, dtype="f32", out_dtype="f32"), {"T": 2}),
    ("moe_down", dict(_DOWN, format="a8w4", swap=True, dtype="bf16", out_dtype="f32"), {"T": 11}),
    (
        "moe_combine",
        dict(
            experts=5,
            top_k=3,
            width=72,
            block=32,
            eps=None,
            in_dtype="bf16",
            dtype="bf16",
            out_dtype="f32",
        ),
        {"T": 9},
    ),
    (
        "moe_combine",
        dict(
            experts=5,
            top_k=4,
            width=72,
            block=128,
            eps=1e-5,
            in_dtype="f32",
            dtype="f32",
            out_dtype="f32",
        ),
        {"T": 5},
    ),
    (
        "mx_quantize",
        dict(cols=96, block_rows=4, block_cols=64, dtype="bf16", in_cols=130, in_offset=32),
        {"T": 9},
    ),
    (
        "mx_quantize",
        dict(
            cols=64, block_rows=8, block_cols=64, dtype="f32", in_cols=64, in_offset=0, rows="ROWS"
        ),
        {"ROWS": 11},
    ),
    (
        "mx_round",
        dict(cols=96, block_rows=4, block_cols=64, dtype="bf16", in_cols=130, in_offset=32),
        {"T": 9},
    ),
    (
        "mx_round",
        dict(
            cols=64, block_rows=8, block_cols=64, dtype="f32", in_cols=64, in_offset=0, rows="ROWS"
        ),
        {"ROWS": 11},
    ),
    (
        "moe_gate_up_one",
        dict(
            _UP,
            **_SITU,
            in_cols=130,
            in_offset=30,
            format="a16w4",
            dtype="bf16",
            block_n=4,
            spread=1,
        ),
        {"T": 1},
    ),
    (
        "moe_gate_up_one",
        dict(_UP, activation="silu", in_cols=96, in_offset=0, format="a16w4", dtype="f32")
        | dict(block_n=16, block_k=1024, spread=8),
        {"T": 1},
    ),
    ("moe_down_one", dict(_ONE, dtype="bf16", out_dtype="bf16"), {"T": 1}),
    ("moe_down_one", dict(_ONE, dtype="f32", out_dtype="f32") | dict(block_n=16), {"T": 1}),
]
