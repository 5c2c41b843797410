"""A compile worker: reads requests from standard input, writes answers to what was standard output.

Its own process, because a toolchain may abort; a fork of it for every kernel, because LLVM's bytes may depend on what
the same process compiled before.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import traceback
from importlib import import_module
from typing import IO, Any

from k3compiler.errors import K3Error
from k3compiler.targets.backend import BACKENDS, BuildRequest, BuiltKernel, backend_for
from k3compiler.targets.base import TargetSpec, find_target

_BOOT = (
    "import sys, ast; sys.path[:] = ast.literal_eval(sys.argv[1]); "
    "from k3compiler.targets.worker import main; main()"
)


class WorkerDied(Exception):
    """The worker's process ended without an answer; the text is the end of what it wrote."""


class Worker:
    """The parent's side of one worker process."""

    def __init__(self, spec: TargetSpec, errors: IO[bytes]) -> None:
        self._errors = errors
        command = [sys.executable, "-c", _BOOT, repr(sys.path), spec.name, BACKENDS[spec.kind]]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )

    def compile(self, request: BuildRequest) -> BuiltKernel:
        """Has one kernel built.

        Raises:
            K3Error: what the backend raised.
            WorkerDied: the process ended.
            RuntimeError: a bug of ours in the worker, with its traceback.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            pickle.dump(request, stdin)
            stdin.flush()
            kind, answer = pickle.load(stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise WorkerDied(self._last_words()) from None
        if kind == "error":
            raise answer
        if kind == "bug":
            raise RuntimeError(f"{request.place}: the compiler failed\n{answer}")
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        written = self._errors.read().decode(errors="replace").strip()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"{how}; {written[-1500:] or 'nothing written'}"

    def stop(self) -> None:
        """Ends the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def main() -> None:
    """The worker's loop; ends with its input."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the toolchain prints; that must not look like an answer
    backend = backend_for(find_target(sys.argv[2]), sys.argv[3])
    for module in backend.modules():
        import_module(module)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answers.write(_in_a_fork(backend, request))
        answers.flush()


def _in_a_fork(backend: Any, request: BuildRequest) -> bytes:
    """The pickled answer of a child that has compiled nothing else; dies as the child dies."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as answer:
            pickle.dump(_answer(backend, request), answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        data = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    if code:
        os._exit(code)
    return data


def _answer(backend: Any, request: BuildRequest) -> tuple[str, Any]:
    try:
        return "built", backend.compile(request)
    except K3Error as error:
        return "error", _placed(error, request)
    except Exception:
        return "bug", traceback.format_exc()


def _placed(error: K3Error, request: BuildRequest) -> K3Error:
    """The error with kernel, op, layers and shape in it."""
    if request.place in error.where:
        return error
    where = f"{request.place}: {error.where}"
    return K3Error(
        error.code, where=where, expected=error.expected, found=error.found, hint=error.hint
    )
