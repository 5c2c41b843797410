PROGRAMS = [
    ("decode_metadata", dict(page_tokens=16, block=32), {"S": 9, "P": 70}),
    ("decode_metadata", dict(page_tokens=64, block=64), {"S": 1, "P": 3}),
    ("prefill_metadata", dict(block=64), {"T": 201, "S": 4, "P": 70}),
    ("prefill_metadata", dict(block=16), {"T": 500, "S": 9, "P": 30}),
    ("prefill_metadata", dict(block=32), {"T": 5, "S": 1, "P": 100}),
]
