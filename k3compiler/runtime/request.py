"""One prompt on its way to a completion."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from k3compiler.runtime.sampling import SamplingParams


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and what was generated from it so far, as its caller sees it.

    Attributes:
        max_tokens: prompt and output together, at most.
        seed: of its random numbers.
        stop_ids: tokens that end it; they are not part of ``outputs``.
        num_cached_tokens: of the prompt, found in the cache.
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    seed: int
    stop_ids: frozenset[int] = frozenset()
    outputs: list[int] = field(default_factory=list[int])
    finish: FinishReason | None = None
    num_cached_tokens: int = 0

    def __post_init__(self) -> None:
        assert 0 < len(self.prompt) < self.max_tokens, "a request needs a prompt and room to answer"

    @property
    def num_tokens(self) -> int:
        """Tokens known so far, prompt and output."""
        return len(self.prompt) + len(self.outputs)

    def accept(self, token: int) -> None:
        """Take the chosen token; sets ``finish`` where it ends the request."""
        assert self.finish is None, "the request has ended"
        if token in self.stop_ids:
            self.finish = FinishReason.STOP
            return
        self.outputs.append(token)
        if self.num_tokens >= self.max_tokens:
            self.finish = FinishReason.LENGTH
