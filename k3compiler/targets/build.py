"""Builds a package's kernels: from the cache where they are, in worker processes where not."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from k3compiler import knobs
from k3compiler.errors import K3Error
from k3compiler.targets.backend import BuildRequest, BuiltKernel, backend_for
from k3compiler.targets.base import TargetSpec
from k3compiler.targets.cache import CacheKeys, KernelCache
from k3compiler.targets.worker import Worker, WorkerDied

Progress = Callable[[int, int], None]
_Answer = tuple[BuildRequest, BuiltKernel | BaseException]


def build_kernels(
    requests: Sequence[BuildRequest],
    target: TargetSpec,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    cache_folder: Path | None = None,
) -> dict[str, BuiltKernel]:
    """Builds every kernel; the result is in the order of the requests.

    Args:
        requests: kernels with symbols of their own.
        target: the chip.
        jobs: worker processes (default: knob ``K3C_JOBS``).
        progress: called with (done, total) after each kernel, in this thread.
        cache_folder: the kernel cache (default: knob ``K3C_CACHE_DIR``).

    Raises:
        K3Error: the first kernel's that cannot be built, naming its op, layers and shape; the rest is given up.
    """
    symbols = [r.symbol for r in requests]
    assert len(set(symbols)) == len(symbols), "two kernels have one symbol"
    cache = KernelCache(cache_folder or knobs.CACHE_DIR.get())
    keys = CacheKeys(target, backend_for(target))
    key_of = {r.symbol: keys.key(r) for r in requests}
    built: dict[str, BuiltKernel] = {}

    def take(kernel: BuiltKernel) -> None:
        built[kernel.symbol] = kernel
        if progress is not None:
            progress(len(built), len(requests))

    missing: list[BuildRequest] = []
    for request in requests:
        kept = cache.get(key_of[request.symbol])
        if kept is None:
            missing.append(request)
        else:
            take(kept)
    workers = min(jobs or knobs.JOBS.get(), len(missing))
    with closing(_in_parallel(missing, target, workers)) as answers:
        for request, answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            cache.put(key_of[request.symbol], answer)
            take(answer)
    return {symbol: built[symbol] for symbol in symbols}


def _in_parallel(
    requests: Sequence[BuildRequest], target: TargetSpec, num_workers: int
) -> Generator[_Answer]:
    """(request, kernel or error) as they come; leaving the loop stops the workers."""
    tasks: queue.SimpleQueue[BuildRequest] = queue.SimpleQueue()
    answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
    for request in sorted(requests, key=lambda r: -len(r.tile_text)):  # long ones first
        tasks.put(request)
    with ExitStack() as stack:
        for _ in range(num_workers):
            errors = stack.enter_context(tempfile.TemporaryFile())
            worker = Worker(target, errors)
            stack.callback(worker.stop)
            threading.Thread(target=_serve, args=(worker, tasks, answers), daemon=True).start()
        for _ in requests:
            yield answers.get()


def _serve(
    worker: Worker,
    tasks: queue.SimpleQueue[BuildRequest],
    answers: queue.SimpleQueue[_Answer],
) -> None:
    """A thread's loop: hands tasks to its worker until none is left, or one fails."""
    while True:
        try:
            request = tasks.get_nowait()
        except queue.Empty:
            return
        try:
            answers.put((request, worker.compile(request)))
        except WorkerDied as death:
            answers.put((request, _died(request, str(death))))
            return
        except Exception as error:
            answers.put((request, error))
            return


def _died(request: BuildRequest, words: str) -> K3Error:
    return K3Error(
        "K3-T005", where=request.place, expected="a compiled kernel", found=f"no answer ({words})"
    )
