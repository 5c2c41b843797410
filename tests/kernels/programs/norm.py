PROGRAMS = [
    (
        "rms_norm",
        dict(cols=100, block=128, eps=1e-5, dtype="bf16", in_cols=130, in_offset=20),
        {"T": 5},
    ),
    (
        "rms_norm",
        dict(cols=96, block=128, eps=1e-5, dtype="bf16", in_cols=96, in_offset=0, part_cols=24),
        {"T": 3},
    ),
    ("rms_norm", dict(cols=64, block=64, eps=1e-6, dtype="f32", in_cols=64, in_offset=0), {"T": 3}),
]
