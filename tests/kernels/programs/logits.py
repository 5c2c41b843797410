PROGRAMS = [
    ("gather_rows", dict(cols=40, block=32, dtype="bf16"), {"T": 9, "R": 4}),
    ("gather_rows", dict(cols=24, block=32, dtype="f32"), {"T": 3, "R": 5}),
    ("argmax", dict(vocab=211, block=64), {"R": 5}),
    ("argmax", dict(vocab=20, block=32), {"R": 2}),
    ("sample", dict(vocab=211, block=64), {"R": 7}),
    ("sample", dict(vocab=50, block=64), {"R": 6}),
]
