"""From lowered MLIR text to an ELF object, through the LLVM inside the bindings."""

from __future__ import annotations

import tempfile
from pathlib import Path

from k3compiler.errors import K3Error
from k3compiler.ir.bindings import execution_engine, ir, passmanager

PIPELINE = (
    "builtin.module(cse,convert-scf-to-cf,convert-math-to-llvm,"
    "convert-vector-to-llvm{enable-x86=true},convert-arith-to-llvm,convert-cf-to-llvm,convert-ub-to-llvm,"
    "reconcile-unrealized-casts)"
)


def to_object(text: str, *, where: str) -> bytes:
    """The relocatable object of MLIR text that :mod:`lower` wrote.

    Raises:
        K3Error: K3-T022 where MLIR or LLVM refuses it.
    """
    context = ir.Context()
    context.enable_multithreading(False)
    try:
        module = ir.Module.parse(text, context)
        with context:
            passmanager.PassManager.parse(PIPELINE).run(module.operation)
        engine = execution_engine.ExecutionEngine(module, opt_level=2, enable_pic=True)
    except (ir.MLIRError, RuntimeError) as error:
        raise _refused(where, str(error)) from None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.o"
        engine.dump_to_object_file(str(path))
        if not path.exists():
            raise _refused(where, "no object file was written (the reason is on stderr)")
        return path.read_bytes()


def _refused(where: str, found: str) -> K3Error:
    return K3Error("K3-T022", where=where, expected="an x86-64 object", found=found[:2000])
