"""What a request may ask of sampling."""

from __future__ import annotations

import pytest

from k3compiler.errors import K3Error
from k3compiler.runtime.sampling import SamplingParams


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1.1e6},
        {"top_k": -1},
        {"top_k": 2**31},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"seed": -1},
        {"seed": 2**31},
    ],
)
def test_bad_parameters(bad: dict[str, float]) -> None:
    with pytest.raises(K3Error, match="K3-R004") as caught:
        SamplingParams(**bad)  # type: ignore[arg-type]
    assert caught.value.where == next(iter(bad))
