"""A request as the scheduler sees it: tokens, limits, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from k3compiler.runtime.cache.unit_keys import Media, Namespace, Tokens, UnitKeys


class JobState(Enum):
    """WAITING -> RUNNING -> DONE; a preemption goes back to WAITING."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Job:
    """One request.

    Attributes:
        prompt: token ids. max_new: tokens to generate.
        priority: lower runs first; then order of arrival.
        reads_cache: whether it may start from a cached prefix.
        outputs: tokens generated before the last preemption, or all of them when done.
        row: of the running sequences; -1 while it waits.
        waits_for: another job that is computing a prefix of this one, up to ``waits_until`` tokens.
        plan: positions -> reasons of the checkpoints that its prefill will take.
    """

    name: str | int
    prompt: Tokens
    max_new: int
    priority: int = 0
    order: int = 0
    namespace: Namespace = (None, None)
    media: tuple[Media, ...] = ()
    reads_cache: bool = True
    outputs: Tokens = field(default_factory=lambda: np.zeros(0, np.int32))
    state: JobState = JobState.WAITING
    row: int = -1
    num_preempted: int = 0
    was_admitted: bool = False
    waits_for: Job | None = None
    waits_until: int = 0
    plan: dict[int, str] = field(default_factory=dict[int, str])
    _known: Tokens | None = None
    _keys: UnitKeys | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller runs first."""
        return self.priority, self.order

    @property
    def known(self) -> Tokens:
        """Prompt and outputs so far: what a prefill has to cover."""
        if self._known is None:
            self._known = np.concatenate([self.prompt, self.outputs])
        return self._known

    @property
    def limit(self) -> int:
        """Prompt and completion together."""
        return len(self.prompt) + self.max_new

    def keys(self, unit: int) -> UnitKeys:
        """Keys of the units of ``known``; hashed once."""
        if self._keys is None:
            self._keys = UnitKeys.of(self.known, unit, self.namespace, self.media)
        return self._keys

    def put_back(self, outputs: Tokens) -> None:
        """It was preempted with these outputs."""
        self.outputs = outputs
        self.state, self.row = JobState.WAITING, -1
        self.num_preempted += 1
        self.plan, self.waits_for = {}, None
        self._known = self._keys = None
