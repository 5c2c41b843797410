from typing import Any

_X = dict(K=72, in_cols=90, in_offset=9, dtype="bf16")
_ONE: dict[str, Any] = dict(tokens=1, block_n=4, block_k=32, **_X)
_FEW: dict[str, Any] = dict(tokens=8, parts=4, block_k=64, **_X)
_MANY: dict[str, Any] = dict(block_m=64, block_n=16, block_k=32, swap=True, **_X)
_LATENT = dict(
    kv_lora=40, rope=8, page_tokens=4, in_cols=60, in_offset=5, eps=1e-5, dtype="bf16"
)  # fmt: skip


def _three(family: str, **given: Any) -> list[tuple[str, dict[str, Any]]]:
    """A router, a plain product and a gated one."""
    return [
        (family, dict(N=33, out_dtype="f32", **given)),
        (family, dict(N=20, epilogue="add", **given)),
        (family, dict(N=30, epilogue="situ", beta=4.0, linear_beta=2.0, **given)),
    ]


PROGRAMS = [
    ("beside", dict(parts=_three("gemv", **_ONE)), {}),
    ("beside", dict(parts=_three("gemm_few", block_n=16, **_FEW)), {"T": 5}),
    ("beside", dict(parts=_three("gemm", **_MANY)), {"T": 18}),
    (
        "beside",
        dict(parts=[("gemm", dict(N=70, **_MANY)), ("mla_latent_write", _LATENT)]),
        {"T": 5},
    ),
]
