"""Contexts, text and verification."""

from __future__ import annotations

from typing import Any

from k3compiler.errors import K3Error
from k3compiler.ir.bindings import ir
from k3compiler.ir.registry import load_dialects


def new_context() -> Any:
    """A fresh MLIR context with every dialect of ours, single-threaded (fork-safe)."""
    context = ir.Context()
    context.enable_multithreading(False)
    load_dialects(context)
    return context


def parse_module(text: str, *, source: str = "module", context: Any | None = None) -> Any:
    """Reads a module from text and verifies it.

    Raises:
        K3Error: K3-V002 for text that does not parse, or holds ops that do not verify.
    """
    context = context or new_context()
    try:
        return ir.Module.parse(text, context)
    except ir.MLIRError as error:
        raise _refused("K3-V002", error, source) from None


def print_module(module: Any, *, locations: bool = False) -> str:
    """A module as text, ending in a newline."""
    text = module.operation.get_asm(enable_debug_info=locations)
    return text.rstrip("\n") + "\n"


def verify_module(module: Any, *, where: str = "module") -> None:
    """Runs every verifier.

    Raises:
        K3Error: K3-V001 with every fault and its place.
    """
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise _refused("K3-V001", error, where) from None


def _refused(code: str, error: Any, where: str) -> K3Error:
    faults = [f"{d.message} [{_place(d.location)}]" for d in error.error_diagnostics]
    expected = "a module whose ops all verify"
    return K3Error(code, where=where, expected=expected, found="; ".join(faults) or str(error))


def _place(location: Any) -> str:
    text = str(location)
    return text.removeprefix("loc(").removesuffix(")").replace('"', "")
