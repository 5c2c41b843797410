"""One-token KDA: K != V, dims that are no powers of two, fused and separate output gates."""

_HEADS = dict(heads=3, k_dim=24, v_dim=20, block_k=32, conv_size=4, eps=1e-5)
# columns: q 72 | k 72 | v 60 | beta 3 | gate 60
_FUSED = dict(in_cols=270, q_offset=0, k_offset=72, v_offset=144, beta_offset=204, gate_offset=207)
_APART = dict(in_cols=210, q_offset=2, k_offset=74, v_offset=146, beta_offset=206, gate_offset=None)
_LOW = dict(rank=12, block_rank=8, low_cols=15, low_offset=2)

PROGRAMS = [
    ("kda_decode", dict(_HEADS, **_FUSED, block_v=32, lower_bound=-5.0, dtype="f32"), {"S": 5}),
    ("kda_decode", dict(_HEADS, **_APART, block_v=16, lower_bound=None, dtype="f32"), {"S": 4}),
    ("kda_decode", dict(_HEADS, **_FUSED, block_v=8, lower_bound=-5.0, dtype="bf16"), {"S": 4}),
    (
        "kda_decode",
        dict(_HEADS, **_FUSED, **_LOW, block_v=32, lower_bound=-5.0, dtype="f32"),
        {"S": 5},
    ),
    (
        "kda_decode",
        dict(_HEADS, **_APART, **_LOW, block_v=32, lower_bound=None, dtype="bf16"),
        {"S": 4},
    ),
]
