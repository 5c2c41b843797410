PROGRAMS = [
    ("gather_rows", dict(cols=40, block=32, dtype="bf16"), {"T": 9, "R": 4}),
    ("gather_rows", dict(cols=24, block=32, dtype="f32"), {"T": 3, "R": 5}),
    ("argmax", dict(vocab=211, block=64), {"R": 5}),
    ("argmax", dict(vocab=20, block=32), {"R": 2}),
    ("sample_border", dict(vocab=211, block=64), {"R": 7}),
    ("sample_border", dict(vocab=50, block=64), {"R": 6}),
    ("sample_draw", dict(vocab=211, chunk=64), {"R": 7}),
    ("sample_draw", dict(vocab=50, chunk=64), {"R": 6}),
    ("sample_pick", dict(chunks=5, block_chunks=8), {"R": 3}),
]
