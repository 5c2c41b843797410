"""The decode half of a step: launches, and on a GPU the next launch before this one's tokens are read.

    step k      launch k+1 (fed with what k chose, which only the device knows) · read k's tokens
    book-keeping of k, decisions of k+1, while k+1 runs
    step k+1    its launch is there already · launch k+2 · read k+1's tokens

A launch is made ahead only where the next step is certain but for rows that stop: no prompt waiting
or running, and no row at its length's end. A row that did stop has then run once too
often: into its own slot and past its own tokens, which nobody reads, and its result is dropped. The
state at a unit boundary that its end would hand on is the rolled copy, made before that launch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3compiler.runtime.cache.engine_cache import EngineCache
from k3compiler.runtime.decode_seats import FROM_DEVICE, DecodeRows
from k3compiler.runtime.executor import NEXT_TOKEN, Executor, StepOutput
from k3compiler.runtime.request import Request
from k3compiler.runtime.scheduler.continuous import ContinuousScheduler

Ints = NDArray[np.int64]
Results = Callable[[], StepOutput]
_NO_TOKEN = -1


class SamplerColumns:
    """What decoding rows were asked for: sampling as the plan's sampler takes it, and what stops them.

    ``who [num_rows]`` i64 numbers the sequences: a row that is set again is another one.
    """

    def __init__(self, num_rows: int) -> None:
        self.temperature: NDArray[np.float32] = np.zeros(num_rows, np.float32)
        self.top_k: NDArray[np.int32] = np.zeros(num_rows, np.int32)
        self.top_p: NDArray[np.float32] = np.ones(num_rows, np.float32)
        self.seed: NDArray[np.int32] = np.zeros(num_rows, np.int32)
        self.who: Ints = np.full(num_rows, -1, np.int64)
        self._stop_ids: NDArray[np.int32] = np.full((num_rows, 1), _NO_TOKEN, np.int32)
        self._numbers = itertools.count()

    def set(self, row: int, request: Request) -> None:
        """From now on ``row`` is decoded for ``request``."""
        params = request.params
        self.temperature[row] = 0.0 if params.is_greedy else params.temperature
        self.top_k[row], self.top_p[row] = params.top_k, params.top_p
        self.seed[row], self.who[row] = request.seed, next(self._numbers)
        missing = len(request.stop_ids) - self._stop_ids.shape[1]
        if missing > 0:
            more = np.full((len(self._stop_ids), missing), _NO_TOKEN, np.int32)
            self._stop_ids = np.concatenate([self._stop_ids, more], axis=1)
        self._stop_ids[row] = _NO_TOKEN
        self._stop_ids[row, : len(request.stop_ids)] = sorted(request.stop_ids)

    def stops(self, rows: Ints, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each row's token ends it."""
        return (self._stop_ids[rows] == tokens[:, None]).any(axis=1)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A launch whose step has not come yet."""

    who: Ints
    results: Results


class DecodeLoop:
    """Launches decodes of scheduled rows, one token each.

    Attributes:
        runs_ahead: whether launches may be made ahead.
    """

    def __init__(
        self,
        executor: Executor,
        cache: EngineCache,
        scheduler: ContinuousScheduler,
        samplers: SamplerColumns,
    ) -> None:
        self._executor, self._cache = executor, cache
        self._scheduler, self._samplers = scheduler, samplers
        self._ahead: _Ahead | None = None
        self._num_moved = 0  # by compactions until the last launch: the device's tables are of then
        has_token = NEXT_TOKEN in executor.runner("decode").plan.outputs
        self.runs_ahead = has_token and not executor.device.exact_rows

    def run(self, rows: Ints) -> Iterator[tuple[slice, StepOutput]]:
        """Decode all rows; yields which of them, and their outputs, launch by launch."""
        ahead, self._ahead = self._ahead, None
        index = None if ahead is None else self._find(rows, ahead)
        most = self._executor.buckets[-1]
        if ahead is not None and index is not None:
            results = self._go_on(rows, ahead.results, len(ahead.who))
            yield slice(0, len(rows)), _picked(results, index)
        elif 0 < len(rows) <= most:
            yield slice(0, len(rows)), self._go_on(rows, self._launch(rows, 0), len(rows))
        else:
            for begin in range(0, len(rows), most):
                some = slice(begin, begin + most)
                yield some, self._launch(rows[some], 0)()
            self._cache.roll_states(rows)

    def _find(self, rows: Ints, ahead: _Ahead) -> Ints | None:
        """Where the rows that did not stop are in the launch ahead; None: all of its rows are gone."""
        order = np.argsort(ahead.who)
        who = self._samplers.who[rows]
        place = np.searchsorted(ahead.who, who, sorter=order)
        index = order[np.minimum(place, len(order) - 1)]
        is_there = ahead.who[index] == who
        if not is_there.any():
            return None
        assert is_there.all(), "a row decodes that was not launched ahead"
        return index

    def _go_on(self, rows: Ints, results: Results, num_launched: int) -> StepOutput:
        """The results of a launch, the next one being started before they are read."""
        self._cache.roll_states(rows)
        if self.runs_ahead and num_launched == len(rows) and self._is_certain(rows):
            self._ahead = _Ahead(self._samplers.who[rows], self._launch(rows, 1))
        return results()

    def _is_certain(self, rows: Ints) -> bool:
        """Whether the next step will decode the same rows, but for those that stop; takes its pages."""
        scheduler, held = self._scheduler, self._cache.hybrid.rows
        if scheduler.waiting or scheduler.num_running != len(rows):
            return False
        if self._cache.hybrid.arena.num_moved != self._num_moved:
            return False  # pages or slots are elsewhere: the rows are set anew by a launch of their own
        if scheduler.is_last(rows).any():
            return False
        fed = held.context[rows] + 1
        unrolled = (fed % self._cache.hybrid.unit == 0) & (held.rolled[rows] == 0)
        if self._cache.hybrid.shape.prefix_cache and unrolled.any():
            return False
        if not self._cache.hybrid.grow_all(rows, fed + 1):
            return False
        self._cache.run_ops()
        return self._cache.hybrid.arena.num_moved == self._num_moved

    def _launch(self, rows: Ints, ahead: int) -> Results:
        """Start a decode of one launch's rows, ``ahead`` steps after what is known of them."""
        num_moved = self._cache.hybrid.arena.num_moved
        if num_moved != self._num_moved:
            self._executor.forget_rows()  # what the device has in its page tables is elsewhere now
            self._num_moved = num_moved
        return self._executor.start_decode(self._columns(rows, ahead))

    def _columns(self, rows: Ints, ahead: int) -> DecodeRows:
        """The step's columns; no loop over rows or tokens."""
        scheduler, samplers = self._scheduler, self._samplers
        step = scheduler.num_out[rows]
        known = scheduler.out[rows, step - 1]
        columns = self._executor.sizes.page_columns
        return DecodeRows(
            samplers.who[rows],
            np.full(len(rows), FROM_DEVICE, np.int32) if ahead else known,
            self._cache.hybrid.rows.context[rows] + ahead,
            self._cache.slot_rows(rows),
            lambda some: self._cache.page_tables(rows[some], columns),
            samplers.temperature[rows],
            samplers.top_k[rows],
            samplers.top_p[rows],
            samplers.seed[rows],
            (step + ahead).astype(np.int32),
        )


def _picked(found: StepOutput, index: Ints) -> StepOutput:
    assert found.next_token is not None, "a launch ahead chooses its tokens"
    return StepOutput(found.next_token[index], None)
