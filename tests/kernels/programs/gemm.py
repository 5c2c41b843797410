_BLOCKS = dict(block_m=16, block_n=32, block_k=16)
_SKINNY = dict(block_m=64, block_n=16, block_k=32, swap=True)
_HEADS = dict(heads=3, block_m=16, block_n=16, block_k=16)
_ABSORB = dict(N=40, K=24, x_cols=36, w_rows=48, w_cols=40, transposed=True)
_VALUE = dict(N=24, K=40, x_cols=40, w_rows=48, w_cols=40, w_offset=24)
_FEW = dict(block_n=4, block_k=32)
_PARTS = dict(parts=4, block_k=64)
_SUM = dict(epilogue="product", K2=88, in_cols2=100, in_offset2=7)
PROGRAMS = [
    ("gemv", dict(N=70, K=72, in_cols=90, in_offset=9, dtype="f32", tokens=1, **_FEW), {"T": 1}),
    (
        "gemv",
        dict(N=33, K=40, in_cols=40, dtype="bf16", epilogue="add", tokens=4, **_FEW),
        {"T": 3},
    ),
    (
        "gemv",
        dict(N=33, K=96, in_cols=96, dtype="bf16", out_dtype="f32", tokens=2, **_FEW),
        {"T": 2},
    ),
    (
        "gemv",
        dict(N=30, K=40, in_cols=40, dtype="f32", epilogue="situ", beta=4.0, tokens=2, **_FEW),
        {"T": 2},
    ),
    ("gemv", dict(N=33, K=40, in_cols=40, dtype="bf16", tokens=2, **_SUM, **_FEW), {"T": 2}),
    (
        "gemm_few",
        dict(N=33, K=136, in_cols=136, dtype="bf16", tokens=8, block_n=16, **_SUM, **_PARTS),
        {"T": 7},
    ),
    (
        "gemm_few",
        dict(N=70, K=136, in_cols=160, in_offset=8, dtype="bf16", tokens=8, block_n=32, **_PARTS),
        {"T": 5},
    ),
    (
        "gemm_few",
        dict(
            N=33, K=128, in_cols=128, dtype="bf16", tokens=16, block_n=8, out_dtype="f32", **_PARTS
        ),
        {"T": 13},
    ),
    (
        "gemm_few",
        dict(N=30, K=72, in_cols=72, dtype="f32", epilogue="add", tokens=8, block_n=16, **_PARTS),
        {"T": 8},
    ),
    (
        "gemm_few",
        dict(
            N=30,
            K=136,
            in_cols=136,
            dtype="bf16",
            epilogue="situ",
            beta=4.0,
            tokens=8,
            block_n=8,
            **_PARTS,
        ),
        {"T": 2},
    ),
    (
        "gemm_few",
        dict(
            N=30, K=136, in_cols=136, dtype="bf16", epilogue="silu", tokens=16, block_n=32, **_PARTS
        ),
        {"T": 16},
    ),
    ("gemm", dict(N=70, K=40, in_cols=40, dtype="f32", group=2, **_BLOCKS), {"T": 50}),
    ("gemm", dict(N=64, K=48, in_cols=60, in_offset=8, dtype="bf16", **_BLOCKS), {"T": 17}),
    (
        "gemm",
        dict(N=20, K=33, in_cols=33, out_cols=48, out_offset=4, dtype="f32", **_BLOCKS),
        {"T": 3},
    ),
    ("gemm", dict(N=33, K=40, in_cols=40, dtype="bf16", out_dtype="f32", **_BLOCKS), {"T": 9}),
    ("gemm", dict(N=33, K=40, in_cols=40, dtype="bf16", epilogue="add", **_BLOCKS), {"T": 19}),
    ("gemm", dict(N=33, K=40, in_cols=40, dtype="f32", epilogue="add2", **_BLOCKS), {"T": 19}),
    ("gemm", dict(N=33, K=40, in_cols=40, dtype="f32", **_SUM, **_BLOCKS), {"T": 19}),
    ("gemm", dict(N=150, K=72, in_cols=72, dtype="f32", **_SKINNY), {"T": 5}),
    ("gemm", dict(N=150, K=72, in_cols=72, dtype="bf16", **_SUM, **_SKINNY), {"T": 18}),
    (
        "gemm",
        dict(N=150, K=72, in_cols=90, in_offset=9, dtype="bf16", epilogue="add", **_SKINNY),
        {"T": 18},
    ),
    (
        "gemm",
        dict(N=40, K=72, in_cols=72, dtype="bf16", epilogue="situ", beta=4.0, **_SKINNY),
        {"T": 5},
    ),
    (
        "gemm",
        dict(N=150, K=72, in_cols=90, in_offset=9, dtype="f32", epilogue="silu", **_SKINNY),
        {"T": 18},
    ),
    (
        "gemm",
        dict(
            N=33,
            K=40,
            in_cols=40,
            dtype="f32",
            epilogue="situ",
            beta=4.0,
            linear_beta=2.0,
            **_BLOCKS,
        ),
        {"T": 19},
    ),
    ("head_gemm", dict(dtype="bf16", **_ABSORB, **_HEADS), {"T": 5}),
    ("head_gemm", dict(dtype="f32", **_ABSORB, **_HEADS), {"T": 17}),
    (
        "head_gemm",
        dict(dtype="f32", epilogue="gate", g_cols=100, g_offset=11, **_VALUE, **_HEADS),
        {"T": 5},
    ),
    ("head_gemm", dict(dtype="bf16", x_offset=0, **_VALUE, **_HEADS), {"T": 18}),
]
