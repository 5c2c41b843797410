"""What an engine counts, under the names that serving systems use."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

WINDOW = 4096
"""Latencies are over the last so many."""


@dataclass(slots=True)
class RequestClock:
    """When a request came, and when its last token did (seconds)."""

    arrival: float = field(default_factory=perf_counter)
    last_token: float | None = None


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine was made; latencies in seconds."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    first_token: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    inter_token: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def token(self, clock: RequestClock) -> None:
        """A request got one more token."""
        now = perf_counter()
        self.generation_tokens += 1
        if clock.last_token is None:
            self.first_token.append(now - clock.arrival)
        else:
            self.inter_token.append(now - clock.last_token)
        clock.last_token = now

    def tokens(self, clocks: Sequence[RequestClock]) -> None:
        """Each of these requests got one more token, and had some before."""
        now = perf_counter()
        self.generation_tokens += len(clocks)
        for clock in clocks:
            assert clock.last_token is not None, "the first token comes of a prompt"
            self.inter_token.append(now - clock.last_token)
            clock.last_token = now

    def to_dict(self) -> dict[str, Any]:
        """Names as in the Prometheus metrics of serving engines, without a prefix."""
        return {
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.generation_tokens,
            "prefix_cache_queries_total": self.prefix_queries,
            "prefix_cache_hits_total": self.prefix_hits,
            "prefix_cache_hit_rate": self.prefix_hits / max(1, self.prefix_queries),
            "spec_decode_num_draft_tokens_total": self.draft_tokens,
            "spec_decode_num_accepted_tokens_total": self.accepted_tokens,
            "request_success_total": self.finished,
            "request_aborted_total": self.aborted,
            "time_to_first_token_seconds": summary(self.first_token),
            "inter_token_latency_seconds": summary(self.inter_token),
        }


def summary(values: deque[float]) -> dict[str, float]:
    """Count, mean, median and 99th percentile; zeros where nothing was measured."""
    if not values:
        return {"count": 0, "mean": 0.0, "p50": 0.0, "p99": 0.0}
    found = np.array(values)
    p50, p99 = np.percentile(found, [50, 99])
    mean = float(found.mean())
    return {"count": len(found), "mean": mean, "p50": float(p50), "p99": float(p99)}
