PROGRAMS = [
    ("add", dict(cols=100, block=64, dtype="bf16"), {"T": 5}),
    ("add", dict(cols=64, block=64, dtype="f32"), {"T": 3}),
]
