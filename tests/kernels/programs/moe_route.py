"""Router and token sort, expert counts that are no powers of two."""

PROGRAMS = [
    ("moe_topk", dict(experts=112, top_k=6, block_tokens=2, block_experts=128, block_choices=8,
                      renormalize=True, scale=1.0), {"T": 5}),
    ("moe_topk", dict(experts=16, top_k=2, block_tokens=4, block_experts=16, block_choices=2,
                      renormalize=False, scale=2.446), {"T": 6}),
]
