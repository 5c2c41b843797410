_SITU = dict(activation="situ", beta=4.0, linear_beta=25.0)
_UNCAPPED = dict(activation="situ", beta=4.0, linear_beta=None)
PROGRAMS = [
    ("act_mul", dict(cols=40, block=16, dtype="bf16", **_SITU), {"T": 5}),
    ("act_mul", dict(cols=24, block=32, dtype="f32", **_UNCAPPED), {"T": 3}),
    ("act_mul", dict(cols=24, block=32, dtype="f32", activation="silu"), {"T": 3}),
]
