"""KDA prefill: K != V, chunks cut short at both ends, fresh and continued sequences, checkpoints."""

_DIMS = dict(heads=2, k_dim=24, v_dim=20)
# columns: q 48 | k 48 | v 40 | beta 2 | gate 40
_ROWS = dict(in_cols=178, q_offset=0, k_offset=48, v_offset=96, beta_offset=136, conv_size=4)
_GATED = dict(_DIMS, block_k=32, block_v=32, eps=1e-5, in_cols=178)
_EXACT = dict(dtype="f32", precision="ieee", inverse_precision="ieee")
_SMALL = {"T": 150, "S": 3, "L": 1}
_LONG = {"T": 330, "S": 2, "L": 1}

PROGRAMS = [
    (
        "kda_inputs",
        dict(_DIMS, **_ROWS, block_k=32, block_v=32, lower_bound=-5.0, dtype="f32"),
        _SMALL,
    ),
    (
        "kda_inputs",
        dict(_DIMS, **_ROWS, block_k=32, block_v=32, lower_bound=None, dtype="bf16"),
        _SMALL,
    ),
    (
        "kda_conv_state",
        dict(channels=136, block=64, conv_size=4, dtype="bf16", in_cols=178, qkv_offset=0),
        {"T": 300, "S": 4, "L": 1},
    ),
    ("kda_prepare", dict(_DIMS, block_k=32, block_v=32, lower_bound=-5.0, **_EXACT), _SMALL),
    (
        "kda_prepare",
        dict(_DIMS, block_k=16, block_v=16, lower_bound=None, **_EXACT),
        {"T": 70, "S": 2},
    ),
    (
        "kda_prepare",
        dict(
            _DIMS,
            block_k=32,
            block_v=32,
            lower_bound=-5.0,
            dtype="bf16",
            precision="tf32",
            inverse_precision="tf32",
        ),
        _SMALL,
    ),
    ("kda_segment_maps", dict(_DIMS, block_k=32, block_v=32, dtype="f32"), _LONG),
    ("kda_segment_maps", dict(_DIMS, block_k=32, block_v=32, dtype="bf16"), _LONG),
    ("kda_scan", dict(_DIMS, block_k=32, block_rows=16, dtype="f32", segmented=True), _LONG),
    ("kda_scan", dict(_DIMS, block_k=32, block_rows=32, dtype="bf16", segmented=True), _LONG),
    ("kda_scan", dict(_DIMS, block_k=32, block_rows=16, dtype="f32", segmented=False), _SMALL),
    ("kda_output", dict(_GATED, gate_offset=138, dtype="f32"), _SMALL),
    ("kda_output", dict(_GATED, gate_offset=None, dtype="bf16"), _LONG),
]
