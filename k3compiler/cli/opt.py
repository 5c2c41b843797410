"""Runs named passes on MLIR text: what ``k3c opt`` and the text tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.ir import parse_module, print_module
from k3compiler.passes.base import Pass
from k3compiler.passes.registry import parse_pipeline, run_passes

SPLIT = "// -----"


def run_opt(
    file: Path,
    *,
    pipeline: str = "",
    print_after: bool = False,
    split_input: bool = False,
    expect_error: bool = False,
    locations: bool = False,
    dump: Callable[[str], object] = sys.stderr.write,
) -> str:
    """The text of every module of a file after the passes.

    Args:
        file: an .mlir file, or ``-`` for standard input.
        pipeline: ``a,b{option=value}``; empty only parses, verifies and prints.
        print_after: hand the module to ``dump`` after each pass.
        split_input: parts between ``// -----`` lines are modules of their own.
        expect_error: each module must be refused; the text is then the errors.
        locations: print them.

    Raises:
        K3Error: what the parser, a verifier or a pass refuses; K3-V003 for a module that is fine
            although an error is expected.
    """
    text = sys.stdin.read() if str(file) == "-" else _read(file)
    parts = text.split(SPLIT) if split_input else [text]
    passes = parse_pipeline(pipeline)

    def show(step: Pass, module: Any) -> None:
        if print_after:
            dump(f"// ---- after {step}\n{print_module(module, locations=locations)}")

    def transformed(part: str) -> str:
        module = parse_module(part, source=str(file))
        run_passes(module, passes, after=show)
        return print_module(module, locations=locations)

    run = _refusal(transformed, file) if expect_error else transformed
    return f"{SPLIT}\n".join(run(part) for part in parts)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as fault:
        raise K3Error(
            "K3-V002", where=str(file), expected="MLIR text in UTF-8", found=str(fault)
        ) from None


def _refusal(transformed: Callable[[str], str], file: Path) -> Callable[[str], str]:
    """The text of the error that a module gives."""

    def refusal(part: str) -> str:
        try:
            transformed(part)
        except K3Error as error:
            return f"{error}\n"
        raise K3Error("K3-V003", where=str(file), expected="an error", found=part.strip())

    return refusal
