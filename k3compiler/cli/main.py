"""``k3c``: the table of subcommands, and the one place that turns an exception into an exit code."""

from __future__ import annotations

import errno
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, NoReturn

import typer

from k3compiler import __version__
from k3compiler.cli.bench import bench_command
from k3compiler.cli.compile import compile_command
from k3compiler.cli.eval import eval_command
from k3compiler.cli.explain import explain_command
from k3compiler.cli.generate import generate_command
from k3compiler.cli.inspect import inspect_command
from k3compiler.cli.logits import logits_command
from k3compiler.cli.opt_command import opt_command
from k3compiler.cli.simulate import simulate_command
from k3compiler.cli.targets import targets_command
from k3compiler.cli.tune import tune_command
from k3compiler.cli.verify import verify_command
from k3compiler.errors import K3Error

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_SIGNAL = 128

app = typer.Typer(
    name="k3c",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets in help stay, and rich is not imported for it
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 an error of the catalogue (k3c explain CODE), 2 usage, 70 a bug of ours.",
)
COMMANDS = {
    "compile": compile_command,
    "opt": opt_command,
    "inspect": inspect_command,
    "verify": verify_command,
    "bench": bench_command,
    "tune": tune_command,
    "generate": generate_command,
    "logits": logits_command,
    "eval": eval_command,
    "simulate": simulate_command,
    "targets": targets_command,
    "explain": explain_command,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"k3c {__version__}")
        raise typer.Exit


@app.callback()
def k3c(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Compile a Kimi K3 checkpoint into a package of kernels; look at it, check it, run it."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and exit: 0, 1 (K3Error), 2 (usage) or 70 (a bug, with a reproducer)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with _unwinding_signals():
        code = _run(arguments)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        app(args=arguments, prog_name="k3c")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else EXIT_ERROR
    except K3Error as error:
        return _report(error)
    except OSError as error:
        is_known = error.errno in _CATALOGUED_ERRNO
        return _report(_from_os(error)) if is_known else _bug(arguments, error)
    except Exception as error:  # the last door: anything else is a bug of ours
        return _bug(arguments, error)
    return 0


@contextmanager
def _unwinding_signals() -> Generator[None]:
    """While a command runs, SIGINT and SIGTERM unwind it, so that half-written files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    """Exit as a shell expects: 128 and the signal's number."""
    raise SystemExit(EXIT_SIGNAL + signum)


_CATALOGUED_ERRNO = {
    errno.ENOSPC: "K3-E003",
    errno.EDQUOT: "K3-E003",
    errno.ENOENT: "K3-E004",
    errno.EACCES: "K3-E004",
    errno.EPERM: "K3-E004",
    errno.EROFS: "K3-E004",
    errno.EISDIR: "K3-E004",
    errno.ENOTDIR: "K3-E004",
}


def _from_os(error: OSError) -> K3Error:
    assert error.errno is not None
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return K3Error(
        _CATALOGUED_ERRNO[error.errno],
        where=str(error.filename) if error.filename else "a file that was being written",
        expected="room to write it" if is_full else "a path that can be read or written",
        found=error.strerror or str(error),
    )


def _report(error: K3Error) -> int:
    print(f"k3c: {error}\n  more:     k3c explain {error.code}", file=sys.stderr)
    return EXIT_ERROR


def _bug(arguments: list[str], error: Exception) -> int:
    from k3compiler.cli.reproducer import write_reproducer

    path = write_reproducer(arguments, error)
    print(
        f"k3c: internal error, a bug of ours: {type(error).__name__}: {error}\n"
        f"  reproducer: {path}\n  please report it with that file",
        file=sys.stderr,
    )
    return EXIT_BUG


if __name__ == "__main__":
    main()
