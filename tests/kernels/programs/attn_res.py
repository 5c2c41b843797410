_F32 = {"cols": 40, "block": 64, "eps": 1e-5, "dtype": "f32"}
_BF16 = {"cols": 64, "block": 64, "eps": 1e-5, "dtype": "bf16"}
PROGRAMS = [
    ("attn_res_mix_norm", {"num_snapshots": 0, **_F32}, {"T": 3}),
    (
        "attn_res_mix_norm",
        {"num_snapshots": 1, "delta": "assign", "write_sum": True, **_F32},
        {"T": 3},
    ),
    (
        "attn_res_mix_norm",
        {"num_snapshots": 3, "delta": "add", "write_sum": True, **_F32},
        {"T": 3},
    ),
    ("attn_res_mix_norm", {"num_snapshots": 8, "delta": "add", **_BF16}, {"T": 4}),
    ("attn_res_mix_norm", {"num_snapshots": 6, "together": 3, "delta": "add", **_F32}, {"T": 4}),
    ("attn_res_mix_norm", {"num_snapshots": 2, "delta": "none", **_BF16}, {"T": 4}),
    ("add_norm", _F32, {"T": 3}),
    ("add_norm", _BF16, {"T": 3}),
]
