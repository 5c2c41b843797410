"""Router and token sort, expert counts that are no powers of two."""

_ROUTING = [
    (
        "moe_topk",
        dict(
            experts=112,
            top_k=6,
            block_tokens=2,
            block_experts=128,
            block_choices=8,
            renormalize=True,
            scale=1.0,
        ),
        {"T": 5},
    ),
    (
        "moe_topk",
        dict(
            experts=16,
            top_k=2,
            block_tokens=4,
            block_experts=16,
            block_choices=2,
            renormalize=False,
            scale=2.446,
        ),
        {"T": 6},
    ),
]

_SORT = dict(experts=6, top_k=3, block_tokens=4, block_choices=4)
_SORTING = [
    ("moe_count", _SORT, {"T": 13}),
    ("moe_offsets", dict(experts=6, block_rows=16, block_experts=8, block=4), {"T": 37}),
    ("moe_scatter", dict(_SORT, block_rows=16), {"T": 37}),
    (
        "moe_scatter",
        dict(experts=24, top_k=8, block_tokens=8, block_choices=8, block_rows=16),
        {"T": 1},
    ),
]

_ROUTE = dict(
    experts=112, local_experts=112, top_k=6, block_experts=128, block_choices=8, block_rows=16,
    renormalize=True, scale=1.0,
)  # fmt: skip
_PART = dict(_ROUTE, local_experts=48, top_k=8, renormalize=False, scale=2.446)
_ROUTED = [
    ("moe_route", params, {"T": 1, "ties": ties}) for params in (_ROUTE, _PART) for ties in (0, 1)
]

_CHOOSE = {k: v for k, v in _ROUTE.items() if k != "block_rows"}
_GROUP = dict(experts=112, top_k=6, block_experts=128, block_tokens=8, block_rows=8)
_FEW = [
    ("moe_choose", _CHOOSE, {"T": 5}),
    ("moe_choose", dict(_CHOOSE, local_experts=48, top_k=8, renormalize=False, scale=2.446), {}),
    ("moe_group", _GROUP, {"T": 8}),
    ("moe_group", _GROUP, {"T": 61}),
    ("moe_group", dict(_GROUP, experts=6, block_experts=8, block_tokens=4, block_rows=4), {"T": 2}),
    ("moe_group", dict(_GROUP, experts=6, block_experts=8, block_rows=64), {"T": 64}),
]

PROGRAMS = [*_ROUTING, *_SORTING, *_ROUTED, *_FEW]
