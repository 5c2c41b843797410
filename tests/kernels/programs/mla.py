_DIMS = dict(nope=16, rope=8, v=16, kv_lora=24)
_ODD = dict(nope=20, rope=4, v=12, kv_lora=32)
_SPLIT = dict(heads=3, page_tokens=16, block_kv=16, block_h=16)
_MERGE = dict(block_s=2, block_c=16)
PROGRAMS = [
    (
        "mla_latent_write",
        dict(kv_lora=24, rope=8, page_tokens=16, in_cols=70, in_offset=30, eps=1e-6, dtype="f32"),
        {"T": 20, "S": 3},
    ),
    (
        "mla_latent_write",
        dict(kv_lora=32, rope=4, page_tokens=8, in_cols=36, in_offset=0, eps=1e-6, dtype="bf16"),
        {"T": 9, "S": 2},
    ),
    (
        "mla_latent_write",
        dict(
            kv_lora=24,
            rope=8,
            page_tokens=16,
            in_cols=70,
            in_offset=30,
            eps=1e-6,
            dtype="bf16",
            q_lora=20,
            q_cols=70,
            q_offset=5,
        ),
        {"T": 20, "S": 3},
    ),
    ("mla_gather", dict(kv_lora=24, rope=8, page_tokens=16, dtype="f32"), {"T": 20, "S": 3}),
    ("mla_gather", dict(kv_lora=32, rope=4, page_tokens=8, dtype="bf16"), {"T": 5, "S": 2}),
    (
        "mla_prefill",
        dict(
            heads=2, block_m=16, block_n=16, gate=True, g_cols=40, g_offset=5, dtype="f32", **_DIMS
        ),
        {"T": 40, "S": 3},
    ),
    (
        "mla_prefill",
        dict(heads=3, block_m=32, block_n=16, gate=False, dtype="bf16", **_ODD),
        {"T": 50, "S": 2},
    ),
    (
        "mla_prefill",
        dict(heads=1, block_m=16, block_n=32, gate=False, dtype="f32", **_ODD),
        {"T": 1, "S": 1},
    ),
    (
        "mla_decode",
        dict(nope=16, rope=8, kv_lora=24, split_tokens=32, dtype="f32", **_SPLIT),
        {"S": 3},
    ),
    (
        "mla_decode",
        dict(nope=20, rope=4, kv_lora=32, split_tokens=16, dtype="bf16", **_SPLIT),
        {"S": 2},
    ),
    (
        "mla_decode",
        dict(nope=16, rope=8, kv_lora=24, split_tokens=16, dtype="f32", **_SPLIT),
        {"S": 3, "NSPLIT": 2},
    ),
    ("mla_merge", dict(heads=3, kv_lora=24, split_tokens=32, dtype="f32", **_MERGE), {"S": 4}),
    ("mla_merge", dict(heads=2, kv_lora=32, split_tokens=16, dtype="bf16", **_MERGE), {"S": 3}),
    (
        "mla_merge",
        dict(heads=2, kv_lora=24, split_tokens=16, dtype="f32", **_MERGE),
        {"S": 5, "NSPLIT": 3},
    ),
]
