"""Steps of fixed shape, captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class StepRunner:
    """Runs training steps; on CUDA the fourth and later ones as one captured graph."""

    WARM = 3

    def __init__(self, step: Callable[[Tensor], Tensor], use_graph: bool) -> None:
        self._step, self._use_graph = step, use_graph
        self._done = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Tensor) -> Tensor:
        if not self._use_graph:
            return self._step(batch)
        if self._graph is None and self._done >= self.WARM:
            self._capture(batch)
        if self._graph is not None:
            self._batch.copy_(batch)
            self._graph.replay()
            return self._loss
        self._done += 1
        return self._aside(batch)

    def _aside(self, batch: Tensor) -> Tensor:
        """A step on a side stream, as capture wants its warm-up."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = self._step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return loss

    def _capture(self, batch: Tensor) -> None:
        self._batch = batch.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._loss = self._step(self._batch)
        self._graph = graph
