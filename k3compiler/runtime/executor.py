"""A package and its weights on one device: runs step inputs, returns logits.

owned here      parameters, the arena of the caches
owned by plans  inputs, workspace, outputs (PlanRunner)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from k3compiler.errors import K3Error
from k3compiler.package.expr import evaluate
from k3compiler.package.manifest import Phase, tap_name
from k3compiler.package.pitches import pitch_of
from k3compiler.package.reader import Package
from k3compiler.runtime.cache.layout import CacheMap
from k3compiler.runtime.decode_seats import DecodeRows, DecodeSeats, columns_of
from k3compiler.runtime.device.base import Buffer, Device, TensorRef
from k3compiler.runtime.plan_runner import POISON_BYTE, PlanRunner
from k3compiler.runtime.state import state_records
from k3compiler.runtime.step import SeqChunk, StepInputs, build_prefill
from k3compiler.runtime.weights import Checkpoint, WeightLoader, param_bytes

LOGITS, NEXT_TOKEN = "logits", "next_token"


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """What the caches hold and where.

    ``page_columns`` is ``P``: pages per sequence, from the longest context; it never changes, so
    that neither shapes nor results depend on who else is in the batch.
    """

    map: CacheMap
    page_columns: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Memory inside of a buffer that lives as long as this does."""

    whole: Buffer
    offset: int
    num_bytes: int

    @property
    def pointer(self) -> int:
        return self.whole.pointer + self.offset


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Results of a step, one row per token that wanted logits, in order.

    Shapes: ``next_token [R] i32`` (greedy, or what the plan's sampler chose), None where the plan
    has none; ``logits [R, vocab] f32``, None unless asked for; ``taps [T, layers, hidden] f32``, of
    every token fed, None unless taken.
    """

    next_token: NDArray[np.int32] | None
    logits: NDArray[np.float32] | None
    taps: NDArray[np.float32] | None = None


class Executor:
    """Loads weights and runs the prefill and decode plans.

    Args:
        package: opened package; ``device`` will load its kernels.
        checkpoint: weights; None only on the null device, whose parameters are then zero.
        sizes: of the caches.
        segment_chunks: kda chunks per segment in prefill; None is one segment per sequence.
        max_decode_rows: sequences per decode launch at most.
        with_taps: steps give what a draft model reads.
        poison: NaN in workspace before each step and in unowned cache memory from the start.

    Attributes:
        arena: the buffer of all caches (cache/layout.py).

    Raises:
        K3Error: K3-R001, K3-R002 (weights), K3-R007 (several ranks), K3-K009, K3-R009 (device).
    """

    def __init__(
        self,
        package: Package,
        device: Device,
        checkpoint: Checkpoint | None,
        sizes: CacheSizes,
        *,
        segment_chunks: int | None = None,
        max_decode_rows: int = 1,
        with_taps: bool = False,
        allow_nan_scales: bool = False,
        poison: bool = False,
    ) -> None:
        manifest = package.manifest
        _check_ranks(package)
        device.load(package)
        self.package, self.device, self.sizes = package, device, sizes
        self._segment_chunks = segment_chunks
        self._constants = {**sizes.map.symbols, "rank": 0}
        self.arena = device.allocate(sizes.map.num_bytes, fill=POISON_BYTE if poison else 0)
        self._fixed = self._load_weights(checkpoint, allow_nan_scales) | self._states()
        self._has_taps = with_taps
        kernels = {k.symbol: k for k in manifest.kernels}
        self._runners = {
            phase: PlanRunner(device, plan, kernels, self._fixed, self._constants, poison=poison)
            for phase, plan in package.plans.items()
        }
        self.buckets = self._decode_buckets(max_decode_rows)
        rows = self.buckets[-1]
        self._seats = DecodeSeats(rows, manifest.page_tokens, sizes.page_columns)
        self._num_decodes = 0
        decode = {"T": rows, "S": rows, "R": rows, "P": sizes.page_columns}
        self._runners["decode"].reserve(decode)

    def _decode_buckets(self, max_rows: int) -> tuple[int, ...]:
        """Row counts that decode runs at: buckets, or any count where nothing is gained by them."""
        if self.device.exact_rows:
            return tuple(range(1, max_rows + 1))
        known = sorted(self.package.manifest.decode_buckets)
        enough = next((b for b in known if b >= max_rows), known[-1])
        return tuple(b for b in known if b <= enough)

    def _load_weights(
        self, checkpoint: Checkpoint | None, allow_nan_scales: bool
    ) -> dict[str, TensorRef]:
        loader = None
        if checkpoint is not None:
            loader = WeightLoader(checkpoint, allow_nan_scales=allow_nan_scales)
            loader.check(self.package.weights)
        params: dict[str, TensorRef] = {}
        for param in self.package.weights.params:
            buffer = self.device.allocate(param_bytes(param), fill=None if loader else 0)
            ref = TensorRef(buffer, param.dtype, param.shape)
            if loader is not None:
                self.device.write(ref, partial(loader.load, param))
            params[f"w:{param.name}"] = ref
        return params

    def _states(self) -> dict[str, TensorRef]:
        """Every layer's part of the arena, as a kernel sees it: ``[items, pitch, ...]``."""
        where, refs = self.sizes.map, dict[str, TensorRef]()
        for name, record in state_records(
            self.package.manifest, self.package.plans.values()
        ).items():
            items, _, *inner = (evaluate(extent, self._constants) for extent in record.shape)
            offset = where.state_at(name)
            part = _Part(self.arena, offset, where.num_bytes - offset)
            shape = (items, where.layout.pitches[pitch_of(name)], *inner)
            refs[name] = TensorRef(part, record.dtype, shape)
        return refs

    @property
    def vocab_size(self) -> int:
        return self.package.manifest.config.vocab_size

    def runner(self, phase: Phase) -> PlanRunner:
        """The bound plan of a phase, for checks and timing."""
        return self._runners[phase]

    def prefill(self, chunks: Sequence[SeqChunk], *, want_logits: bool = False) -> StepOutput:
        """Feed the new tokens of every chunk through the prefill plan."""
        step = build_prefill(
            chunks,
            page_columns=self.sizes.page_columns,
            page_tokens=self.package.manifest.page_tokens,
            chunk_tokens=self.package.manifest.chunk_tokens,
            segment_chunks=self._segment_chunks,
        )
        num_rows = step.symbols["R"]
        wait = self._start("prefill", step, want_logits)
        return _of_rows(wait(), np.arange(num_rows), np.arange(step.symbols["T"]))

    def decode(self, chunks: Sequence[SeqChunk], *, want_logits: bool = False) -> StepOutput:
        """Feed one token of every sequence through the decode plan."""
        self.forget_rows()
        rows = columns_of(chunks, self.sizes.page_columns)
        found = self.start_decode(rows, want_logits=want_logits)()
        self.forget_rows()
        return found

    def start_decode(
        self, rows: DecodeRows, *, want_logits: bool = False
    ) -> Callable[[], StepOutput]:
        """Launch a decode step; the function returned waits for its results, in the rows' order.

        Rows that were in the launch before are advanced on the device. On a GPU the next launch may
        be started before the results of this one are asked for.
        """
        bucket = next(b for b in self.buckets if b >= rows.num_rows)
        seats = self._seats.take(rows.who)
        step = self._seats.record(rows, seats, bucket)
        self._num_decodes += 1
        number = self._num_decodes
        try:
            wait = self._start("decode", step, want_logits)
        except BaseException:
            self.forget_rows()
            raise

        def results() -> StepOutput:
            found = _of_rows(wait(), seats, seats)
            if number == self._num_decodes and found.next_token is not None:
                self._seats.chose(seats, found.next_token)
            return found

        return results

    def forget_rows(self) -> None:
        """Rows of decode launches are set anew (page tables were rewritten)."""
        self._seats.forget()

    def _start(self, phase: Phase, step: StepInputs, want_logits: bool) -> Callable[[], StepOutput]:
        runner = self._runners[phase]
        has_token = NEXT_TOKEN in runner.plan.outputs
        fetch = [NEXT_TOKEN] if has_token else []
        if want_logits or not has_token:
            fetch.append(LOGITS)
        fetch = fetch if step.symbols["R"] else []
        taps = [tap_name(layer) for layer in runner.plan.taps] if self._has_taps else []
        wait = runner.start(step, [*fetch, *taps])

        def results() -> StepOutput:
            found = wait()
            tapped = np.stack([found[name] for name in taps], axis=1) if taps else None
            return StepOutput(found.get(NEXT_TOKEN), found.get(LOGITS), tapped)

        return results

    def close(self) -> None:
        """Give back the device's threads and modules."""
        self.device.close()


def _of_rows(found: StepOutput, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> StepOutput:
    """Some rows of a step's outputs, and some tokens of its taps, as f32."""
    chosen, logits, taps = found.next_token, found.logits, found.taps
    return StepOutput(
        None if chosen is None else chosen[rows],
        None if logits is None else logits[rows].astype(np.float32, copy=False),
        None if taps is None else taps[tokens].astype(np.float32, copy=False),
    )


def _check_ranks(package: Package) -> None:
    tp = package.manifest.parallel.tp
    if tp == 1 and package.manifest.parallel.ep == 1:
        return
    raise K3Error(
        "K3-R007",
        where=str(package.path),
        expected="a package for one rank (--tp 1 --ep 1)",
        found=f"tp {tp}, ep {package.manifest.parallel.ep}",
        hint="compile with --tp 1, or verify and bench the kernels of this package alone",
    )
