"""The engine: prompts in, completions out.

    schedule -> build inputs -> launch a plan -> choose tokens -> book-keeping

One engine serves one package with one set of weights on one device; it is not thread-safe.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler import knobs
from k3compiler.errors import K3Error
from k3compiler.package.expr import cdiv
from k3compiler.package.reader import Package
from k3compiler.package.safetensors_map import CheckpointFiles
from k3compiler.runtime.cache.engine_cache import EngineCache, Memory
from k3compiler.runtime.cache.layout import ALIGNMENT, CacheLayout, CacheMap
from k3compiler.runtime.cache.state_memory import StateMemory
from k3compiler.runtime.cache.unit_keys import Media, Namespace
from k3compiler.runtime.device.select import open_device
from k3compiler.runtime.dspark import DSparkDrafter
from k3compiler.runtime.executor import CacheSizes, Executor
from k3compiler.runtime.metrics import EngineCounters, RequestClock
from k3compiler.runtime.request import FinishReason, Request
from k3compiler.runtime.sampling import MAX_SEED, SamplingParams
from k3compiler.runtime.scheduler.continuous import (
    ContinuousScheduler,
    Limits,
    Retention,
    StepPlan,
)
from k3compiler.runtime.scheduler.job import Job, JobState
from k3compiler.runtime.speculation import Drafter
from k3compiler.runtime.state import state_records
from k3compiler.runtime.step import SeqChunk
from k3compiler.runtime.step_runner import Live, StepRunner
from k3compiler.runtime.tokenizer import MODEL_FILE, StreamDecoder, Tokenizer
from k3compiler.runtime.weights import Checkpoint

Prompt = str | Sequence[int]

DEFAULT_CONTEXT_TOKENS = 4096
DEFAULT_DRAFT_TOKENS = 7


@dataclass(frozen=True, slots=True)
class Completion:
    """What a prompt became. ``tokens`` leave out the stop token; ``text`` needs a tokenizer.

    ``num_cached_tokens`` of the prompt were not computed but found in the cache.
    """

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str | None
    finish_reason: str  # "stop" or "length"
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One more token of prompt ``index``, or its end.

    ``token`` is None when the event is only the end (a stop token); ``text`` is what became
    readable with it; ``finish_reason`` is set on the last event of a prompt.
    """

    index: int
    token: int | None
    text: str
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class RequestKeys:
    """What keeps a request's prefixes apart from those of others, beside its tokens."""

    namespace: Namespace = (None, None)
    media: tuple[Media, ...] = ()


class Engine:
    """Runs a package.

    Args:
        package: a package directory, or one already opened.
        weights: the checkpoint directory it was compiled for (its tokenizer files are used where
            present), or tensors by name. None is for the null device only.
        device: ``cpu``, ``cuda``, ``cuda:N``, ``null``; None takes what the package needs.
        max_context: tokens of prompt and completion at most (default 4096, or the model's own).
        max_sequences: sequences that run at once.
        prefill_tokens: prompt tokens per step at most.
        num_pages: MLA pages of the cache; None makes room for every sequence at full length.
        num_slots: KDA slots; those beyond ``max_sequences`` hold checkpoints (default: four times as
            many, and one that nobody owns).
        memory: ``unified`` takes the bytes of those pages and slots as one arena for both;
            ``static`` keeps to the numbers.
        cache_bytes: of the arena, instead of what ``num_pages`` and ``num_slots`` take.
        prefix_cache: reuse the common prefixes of prompts.
        match_unit: granularity of that reuse in tokens, a multiple of the kda chunk (the default).
        host_bytes: host memory that evicted prefixes are spilled to, and come back from.
        draft: a DSpark draft's directory: it proposes tokens that a decode step then verifies. The
            package must be compiled with it (``k3c compile --draft``).
        drafter: another source of proposals.
        draft_tokens: proposed at once, at most (default: what the draft gives, or 7).
        segment_chunks: kda chunks per prefill segment; None is one segment per sequence.
        num_threads: of the CPU device; None asks K3C_NUM_THREADS.
        allow_nan_scales: accept NaN scale bytes in experts.
        poison: NaN in memory that nothing wrote (debugging); None asks K3C_POISON.
        interpret: CPU device, launch kernel by kernel from Python (debugging).

    Raises:
        K3Error: K3-K..., K3-R... as the parts say; K3-R005 an option out of range.
    """

    def __init__(
        self,
        package: str | Path | Package,
        weights: str | Path | Checkpoint | None,
        *,
        device: str | None = None,
        max_context: int | None = None,
        max_sequences: int = 8,
        prefill_tokens: int = 512,
        num_pages: int | None = None,
        num_slots: int | None = None,
        memory: Memory = "unified",
        cache_bytes: int | None = None,
        prefix_cache: bool = True,
        match_unit: int | None = None,
        host_bytes: int = 0,
        draft: str | Path | None = None,
        drafter: Drafter | None = None,
        draft_tokens: int | None = None,
        segment_chunks: int | None = None,
        num_threads: int | None = None,
        allow_nan_scales: bool = False,
        poison: bool | None = None,
        interpret: bool = False,
    ) -> None:
        self.package = package if isinstance(package, Package) else Package.open(package)
        self.max_context = self._context(max_context)
        manifest = self.package.manifest
        _check_option("max_sequences", max_sequences, 1)
        _check_option("prefill_tokens", prefill_tokens, manifest.chunk_tokens)
        _check_option("segment_chunks", segment_chunks, 1)
        _check_option("num_pages", num_pages, 2)
        _check_option("num_slots", num_slots, 2)
        _check_option("cache_bytes", cache_bytes, ALIGNMENT)
        if memory not in ("unified", "static"):
            raise _bad_option("memory", "unified or static", repr(memory))
        unit = manifest.chunk_tokens if match_unit is None else match_unit
        if unit < 1 or unit % manifest.chunk_tokens:
            expected = f"a multiple of {manifest.chunk_tokens} (the kda chunk)"
            raise _bad_option("match_unit", expected, str(match_unit))
        _check_option("num_threads", num_threads, 1)
        _check_option("draft_tokens", draft_tokens, 1)
        _check_option("host_bytes", host_bytes, 0)
        checkpoint = CheckpointFiles(weights) if isinstance(weights, str | Path) else weights
        model = None if draft is None else self._open_draft(draft, drafter, checkpoint)
        drafter = model or drafter
        width = 1 if drafter is None else _num_drafts(drafter, draft_tokens) + 1
        slots = (4 * max_sequences + 1 if num_slots is None else num_slots) - 1
        opened = open_device(device, manifest.target, num_threads=num_threads, interpret=interpret)
        if weights is None and opened.name != "null":
            raise _bad_option("weights", "a checkpoint directory", "None")
        try:
            self.executor = Executor(
                self.package,
                opened,
                checkpoint,
                self._sizes(max_sequences, num_pages, slots, width, cache_bytes, model),
                segment_chunks=segment_chunks,
                max_decode_rows=max_sequences,
                with_taps=model is not None,
                allow_nan_scales=allow_nan_scales,
                poison=knobs.POISON.get() if poison is None else poison,
            )
        except BaseException:
            opened.close()
            raise
        self.counters = EngineCounters()
        static_slots = slots if memory == "static" else None
        self.cache = self._make_cache(
            max_sequences, unit, prefix_cache, width, host_bytes, static_slots
        )
        if model is not None:
            model.attach(self.cache.memory)
        self.scheduler = self._make_scheduler(max_sequences, prefill_tokens, width)
        self._live: dict[str | int, Live] = {}
        self._runner = StepRunner(
            self.executor, self.cache, self.scheduler, self._live, self.counters, drafter
        )
        self._tokenizer_files = Path(weights) if isinstance(weights, str | Path) else None
        self._tokenizer: Tokenizer | None = None
        self._ids = itertools.count()

    def _context(self, max_context: int | None) -> int:
        limit = self.package.manifest.config.max_context
        chosen = min(DEFAULT_CONTEXT_TOKENS, limit) if max_context is None else max_context
        if not 2 <= chosen <= limit:
            raise _bad_option("max_context", f"2..{limit} (the model's)", str(chosen))
        return chosen

    def _open_draft(
        self, draft: str | Path, drafter: Drafter | None, target: Checkpoint | None
    ) -> DSparkDrafter:
        if drafter is not None:
            raise _bad_option("drafter", "nothing beside a draft", type(drafter).__name__)
        if target is None:
            raise _bad_option("weights", "a checkpoint: the draft uses its head", "None")
        return DSparkDrafter.open(draft, self.package.manifest, self.package.plans, target)

    def _sizes(
        self,
        max_sequences: int,
        num_pages: int | None,
        slots: int,
        width: int,
        cache_bytes: int | None,
        draft: DSparkDrafter | None,
    ) -> CacheSizes:
        """A verify keeps the state of every position but the last in a slot of its own."""
        manifest, plans = self.package.manifest, self.package.plans.values()
        states = state_records(manifest, plans) | ({} if draft is None else draft.states)
        layout = CacheLayout.of(states, manifest.page_tokens)
        columns = cdiv(self.max_context, manifest.page_tokens)
        pages = max_sequences * columns if num_pages is None else num_pages - 1
        num_bytes = slots * layout.slot_bytes + pages * layout.page_bytes
        if cache_bytes is not None:
            num_bytes = cache_bytes // ALIGNMENT * ALIGNMENT
        return CacheSizes(CacheMap(layout, num_bytes, max_sequences * (width - 1)), columns)

    def _make_cache(
        self,
        max_sequences: int,
        unit: int,
        prefix_cache: bool,
        width: int,
        host_bytes: int,
        static_slots: int | None,
    ) -> EngineCache:
        executor = self.executor
        return EngineCache(
            StateMemory(executor.device, executor.arena, executor.sizes.map),
            num_sequences=max_sequences,
            page_tokens=self.package.manifest.page_tokens,
            unit=unit,
            prefix_cache=prefix_cache,
            static_slots=static_slots,
            num_drafts=width - 1,
            host_bytes=host_bytes,
        )

    def _make_scheduler(
        self, max_sequences: int, prefill_tokens: int, width: int
    ) -> ContinuousScheduler:
        limits = Limits(
            prefill_tokens + max_sequences * width,
            max_sequences,
            self.package.manifest.chunk_tokens,
            self.max_context,
            width,
            prefill_tokens,
        )
        return ContinuousScheduler(self.cache.hybrid, limits, Retention(), self._note)

    def _note(self, event: str, fields: dict[str, Any]) -> None:
        """Events of the scheduler."""
        if event == "admitted":
            request = self._live[fields["id"]].request
            request.num_cached_tokens = fields["hit_tokens"]
            self.counters.prefix_queries += len(request.prompt)
            self.counters.prefix_hits += fields["hit_tokens"]

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer.

        Raises:
            K3Error: K3-R008 where it has none.
        """
        if self._tokenizer is None:
            if self._tokenizer_files is None:
                raise K3Error(
                    "K3-R008",
                    where="engine",
                    expected="weights given as a directory with tokenizer files",
                    found="tensors only",
                    hint="pass token ids instead of text",
                )
            vocab = self.executor.vocab_size
            self._tokenizer = Tokenizer(self._tokenizer_files, vocab_size=vocab)
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether the weights come with tokenizer files."""
        files = self._tokenizer_files
        return files is not None and (files / MODEL_FILE).is_file()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        salt: str | None = None,
        adapter: str | None = None,
        media: Sequence[Sequence[Media]] = (),
        priority: int = 0,
    ) -> list[Completion]:
        """Complete every prompt; results are in the order of the prompts.

        Args:
            prompts: one prompt or several, each text or token ids.
            params: for all prompts, or one per prompt; None is greedy.
            salt, adapter: prefixes are shared only among requests of one salt and one adapter (a name
                for weights that the caller changed).
            media: per prompt, what stands behind its placeholder tokens: shared only where it is the same.
            priority: lower runs first, and is preempted last.

        Raises:
            K3Error: K3-R003 a prompt that cannot run, K3-R005 media outside of a prompt, K3-R008 text
                without a tokenizer.
        """
        requests = self._requests(prompts, params)
        keys = _request_keys(requests, (salt, adapter), media)
        try:
            for request, own in zip(requests, keys, strict=True):
                self._submit(request, own, priority)
            while any(request.finish is None for request in requests):
                self.step()
        finally:
            self._abort(requests)
        return [self._completion(request) for request in requests]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        salt: str | None = None,
        adapter: str | None = None,
        media: Sequence[Sequence[Media]] = (),
        priority: int = 0,
    ) -> Iterator[StreamEvent]:
        """Complete every prompt, yielding each token as it is chosen; arguments as :meth:`generate`.

        Leaving the iterator early aborts what is unfinished.
        """
        requests = self._requests(prompts, params)
        tokenizer = self.tokenizer if self.has_tokenizer else None
        tails = [_Tail(i, request, tokenizer) for i, request in enumerate(requests)]
        keys = _request_keys(requests, (salt, adapter), media)
        try:
            for request, own in zip(requests, keys, strict=True):
                self._submit(request, own, priority)
            while not all(tail.is_done for tail in tails):
                self.step()
                for tail in tails:
                    yield from tail.events()
        finally:
            self._abort(requests)

    def logits(
        self, tokens: Sequence[int], *, chunks: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """The logits at every position of one sequence.

        Shapes: ``[tokens, vocab] f32``; row i predicts token i + 1.

        Args:
            tokens: token ids.
            chunks: tokens per step; 1 is the decode plan (also from an empty state), more is the
                prefill plan; the last one repeats until the tokens are used up. None is one prefill.

        Raises:
            K3Error: K3-R003, K3-R005.
        """
        ids = self._check_ids(list(tokens), room=0)
        sizes = _chunk_sizes(len(ids), chunks)
        sequence = self.cache.open(len(ids))
        if sequence is None:
            raise _bad_option("logits", "free cache memory for the tokens", "too few free pages")
        rows: list[NDArray[np.float32]] = []
        try:
            for size in sizes:
                start = sequence.context_tokens
                self.cache.grow(sequence, start + size)
                part = ids[start : start + size]
                chunk = SeqChunk(part, start, sequence.slot, sequence.pages, "all")
                is_decode = size == 1 and chunks is not None
                run = self.executor.decode if is_decode else self.executor.prefill
                output = run([chunk], want_logits=True).logits
                assert output is not None
                rows.append(output)
                sequence.context_tokens += size
        finally:
            self.cache.close(sequence)
        return np.concatenate(rows)

    def close(self) -> None:
        """Give back threads and device modules."""
        self.executor.close()

    # -- requests

    def _requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Request]:
        many = _as_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            each = [params or SamplingParams()] * len(many)
        else:
            each = list(params)
        if len(each) != len(many):
            raise _bad_option("params", f"one, or {len(many)} of them", f"{len(each)}")
        return [self._request(p, q) for p, q in zip(many, each, strict=True)]

    def _request(self, prompt: Prompt, params: SamplingParams) -> Request:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._check_ids(ids, room=1)
        max_tokens = min(len(ids) + params.max_tokens, self.max_context)
        if not self.cache.can_ever_open(max_tokens):
            room = self.cache.pages.num_usable * self.cache.page_tokens
            raise _bad_prompt(f"prompt and completion of at most {room} tokens", f"{max_tokens}")
        end = self.package.manifest.config.eos_id
        stops = set(params.stop_ids)
        if end is not None and not params.ignore_eos:
            stops.add(end)
        outside = next((i for i in params.stop_ids if not 0 <= i < self.executor.vocab_size), None)
        if outside is not None:
            expected = f"token ids in 0..{self.executor.vocab_size - 1}"
            raise K3Error("K3-R004", where="stop_ids", expected=expected, found=f"{outside}")
        seed = secrets.randbelow(MAX_SEED + 1) if params.seed is None else params.seed
        return Request(next(self._ids), tuple(ids), params, max_tokens, seed, frozenset(stops))

    def _check_ids(self, ids: list[int], *, room: int) -> list[int]:
        vocab = self.executor.vocab_size
        if not ids:
            raise _bad_prompt("at least one token", "an empty prompt")
        if len(ids) + room > self.max_context:
            expected = f"at most {self.max_context - room} tokens (max_context)"
            raise _bad_prompt(expected, f"{len(ids)} tokens", "raise max_context, or shorten it")
        outside = next((i for i in ids if not 0 <= i < vocab), None)
        if outside is not None:
            raise _bad_prompt(f"token ids in 0..{vocab - 1}", f"{outside}")
        return ids

    # -- steps

    def _submit(
        self, request: Request, keys: RequestKeys = RequestKeys(), priority: int = 0
    ) -> None:
        job = Job(
            str(request.id),
            np.array(request.prompt, np.int32),
            request.max_tokens - len(request.prompt),
            priority=priority,
            order=request.id,
            namespace=keys.namespace,
            media=keys.media,
        )
        refusal = self.scheduler.refusal(job)
        if refusal is not None:
            raise K3Error(
                refusal.code,
                where=f"prompt of {len(request.prompt)} tokens",
                expected="a cache that holds prompt and completion",
                found=", ".join(f"{name} {value}" for name, value in refusal.fields.items()),
                hint="shorten it, or give the engine more num_pages or cache_bytes",
            )
        self._live[job.name] = Live(job, request, RequestClock())
        self.counters.prompt_tokens += len(request.prompt)
        self.scheduler.add(job)

    def step(self) -> None:
        """One step: decodes of every running request, prefill under the budget, book-keeping."""
        if not self.scheduler.has_work:
            return
        plan = self.scheduler.schedule()
        try:
            self._run(plan)
        except BaseException:
            for job in self.scheduler.cancel(plan):
                request = self._live[job.name].request
                request.finish = request.finish or FinishReason.ABORT
            self._forget_finished()
            raise
        self.cache.run_ops()
        self._forget_finished()

    def _run(self, plan: StepPlan) -> None:
        self.cache.run_ops()
        arena = self.cache.hybrid.arena
        arena.is_frozen = True
        try:
            found = self._runner.run(plan)
        finally:
            arena.is_frozen = False
        self.scheduler.complete(plan, found.tokens, found.num_new, found.first, found.stopped)

    def _forget_finished(self) -> None:
        done = [name for name, live in self._live.items() if live.job.state is JobState.DONE]
        for name in done:
            del self._live[name]
        self.counters.finished += len(done)

    def _abort(self, requests: Sequence[Request]) -> None:
        """Take what has not finished off the scheduler (an error, or a stream left early)."""
        for request in requests:
            if request.finish is not None or str(request.id) not in self._live:
                continue
            self.scheduler.abort(self._live.pop(str(request.id)).job)
            self.counters.aborted += 1
            request.finish = FinishReason.ABORT

    def metrics(self) -> dict[str, Any]:
        """Counters and gauges by the names that serving engines use; times are seconds."""
        use, pages = self.cache.use, self.cache.pages
        return {
            "num_requests_running": self.scheduler.num_running,
            "num_requests_waiting": len(self.scheduler.waiting),
            "cache_capacity_bytes": use.arena,
            "kv_cache_bytes": use.kv,
            "state_cache_bytes": use.state,
            "cache_usage_perc": (use.kv + use.state) / use.arena,
            "kv_cache_usage_perc": use.kv / max(1, use.kv_limit),
            "state_cache_usage_perc": use.state / max(1, use.state_limit),
            "kv_cache_locked_perc": 1 - pages.num_free / max(1, pages.num_usable),
            "cache_moved_items_total": self.cache.hybrid.arena.num_moved,
            "num_preemptions_total": self.scheduler.num_preempted,
            **self.counters.to_dict(),
        }

    def _completion(self, request: Request) -> Completion:
        assert request.finish is not None
        text = self.tokenizer.decode(request.outputs) if self.has_tokenizer else None
        return Completion(
            request.prompt,
            tuple(request.outputs),
            text,
            request.finish.value,
            request.num_cached_tokens,
        )


class _Tail:
    """What of a request its stream has not told yet."""

    def __init__(self, index: int, request: Request, tokenizer: Tokenizer | None) -> None:
        self._index, self._request = index, request
        self._decoder = None if tokenizer is None else StreamDecoder(tokenizer)
        self._num_told = 0
        self.is_done = False

    def events(self) -> Iterator[StreamEvent]:
        """Events for every new token, the last one with the reason."""
        request = self._request
        reason = None if request.finish is None else request.finish.value
        fresh = request.outputs[self._num_told :]
        self._num_told += len(fresh)
        for left, token in zip(range(len(fresh) - 1, -1, -1), fresh, strict=True):
            is_end = left == 0 and request.finish is FinishReason.LENGTH
            yield self._event(token, reason if is_end else None)
        if reason is not None and not self.is_done:
            yield self._event(None, reason)

    def _event(self, token: int | None, reason: str | None) -> StreamEvent:
        text = ""
        if self._decoder is not None:
            text = "" if token is None else self._decoder.push(token)
            text += self._decoder.finish() if reason is not None else ""
        self.is_done = self.is_done or reason is not None
        return StreamEvent(self._index, token, text, reason)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt (text, or a flat list of ids) or several, as a list."""
    if isinstance(prompts, str):
        return [prompts]
    items: list[str | int | Sequence[int]] = list(prompts)
    ids = [int(item) for item in items if isinstance(item, int | np.integer)]
    if len(ids) == len(items):
        return [ids]
    if ids:
        raise _bad_prompt("text, ids, or a list of those", "ids and prompts mixed")
    return [_as_prompt(item) for item in items if not isinstance(item, int)]


def _as_prompt(item: str | Sequence[int]) -> Prompt:
    return item if isinstance(item, str) else [int(i) for i in item]


def _request_keys(
    requests: Sequence[Request], namespace: Namespace, media: Sequence[Sequence[Media]]
) -> list[RequestKeys]:
    """The keys of every request; ``media`` is empty, or one list per prompt."""
    each = [tuple(items) for items in media] or [()] * len(requests)
    if len(each) != len(requests):
        raise _bad_option("media", f"one list per prompt, {len(requests)} of them", f"{len(each)}")
    for request, items in zip(requests, each, strict=True):
        for item in items:
            if not 0 <= item.start < item.stop <= len(request.prompt):
                tokens = f"a range of the prompt's {len(request.prompt)} tokens"
                raise _bad_option("media", tokens, f"{item.id}: {item.start}..{item.stop}")
    return [RequestKeys(namespace, items) for items in each]


def _chunk_sizes(total: int, chunks: Sequence[int] | None) -> list[int]:
    """Chunk sizes that sum to ``total``; the last one given repeats (and is cut at the end)."""
    if chunks is None:
        return [total]
    if not chunks or min(chunks) < 1:
        raise _bad_option("chunks", "sizes of at least 1", str(list(chunks)))
    sizes: list[int] = []
    for size in itertools.chain(chunks, itertools.repeat(chunks[-1])):
        left = total - sum(sizes)
        if left == 0:
            break
        sizes.append(min(size, left))
    if sum(chunks) > total and len(chunks) > len(sizes):
        raise _bad_option("chunks", f"sizes that sum to {total}", f"{sum(chunks)}")
    return sizes


def _num_drafts(drafter: Drafter, wanted: int | None) -> int:
    most = drafter.most
    if most is not None and wanted is not None and wanted > most:
        raise _bad_option("draft_tokens", f"at most {most} (the draft's block)", str(wanted))
    return wanted or most or DEFAULT_DRAFT_TOKENS


def _check_option(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise _bad_option(name, f"at least {least}", str(value))


def _bad_option(name: str, expected: str, found: str) -> K3Error:
    return K3Error("K3-R005", where=name, expected=expected, found=found)


def _bad_prompt(expected: str, found: str, hint: str = "") -> K3Error:
    return K3Error("K3-R003", where="prompt", expected=expected, found=found, hint=hint)


__all__ = ["Completion", "Engine", "FinishReason", "Media", "SamplingParams", "StreamEvent"]
