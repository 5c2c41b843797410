PROGRAMS = [
    ("embed", dict(rows=11, cols=40, block=16, dtype="bf16"), {"T": 9}),
    ("embed", dict(rows=5, cols=24, block=32, dtype="f32"), {"T": 4}),
]
