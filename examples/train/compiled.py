"""torch.compile for the pointwise stretches between matrix products, switched on once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch._dynamo

P = ParamSpec("P")
R = TypeVar("R")
_state = {"enabled": False}


def enable_compile(is_enabled: bool) -> None:
    """Compile every :func:`fused` function from its next call on (CUDA only makes sense)."""
    _state["enabled"] = is_enabled
    torch._dynamo.config.recompile_limit = 64  # one variant per shape: they are few and fixed


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a pure tensor function as worth fusing; it runs as written until compile is enabled."""
    ready: list[Callable[..., Any]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _state["enabled"]:
            return function(*args, **kwargs)
        if not ready:
            ready.append(torch.compile(function, dynamic=False))
        return ready[0](*args, **kwargs)

    return call
