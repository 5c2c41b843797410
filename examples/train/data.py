"""Tokenised text as training windows, drawn by seed and step alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Windows:
    """Windows of ``length`` tokens and the token behind each, without overlap within an epoch.

    Epoch e starts at a random offset below the length; the order is a permutation. Both depend on
    the seed, the length and e only.
    """

    tokens: Tensor  # [N] int16 or int32 on the training device
    length: int
    seed: int
    _epoch: int = -1
    _starts: Tensor | None = None

    @property
    def per_epoch(self) -> int:
        return (len(self.tokens) - 1) // self.length - 1

    def batch(self, first: int, count: int) -> Tensor:
        """Windows ``first .. first + count - 1`` of the endless stream: ``[count, length + 1]``."""
        starts = torch.stack([self._start(n) for n in range(first, first + count)])
        device = self.tokens.device
        span = torch.arange(self.length + 1, device=device)
        return self.tokens[starts.to(device)[:, None] + span].long()

    def _start(self, index: int) -> Tensor:
        epoch, within = divmod(index, self.per_epoch)
        if epoch != self._epoch:
            source = torch.Generator().manual_seed(self.seed * 1_000_003 + self.length + epoch)
            offset = torch.randint(self.length, (1,), generator=source)
            order = torch.randperm(self.per_epoch, generator=source)
            self._epoch, self._starts = epoch, order * self.length + offset
        assert self._starts is not None
        return self._starts[within]
