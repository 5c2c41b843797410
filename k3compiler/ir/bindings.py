"""The one door to the MLIR bindings: everything the project uses of them, under one roof."""

from torch_mlir import execution_engine, ir, passmanager, rewrite
from torch_mlir.dialects import arith, ext, func, math, memref, scf, transform, vector

__all__ = [
    "arith",
    "execution_engine",
    "ext",
    "func",
    "ir",
    "math",
    "memref",
    "passmanager",
    "rewrite",
    "scf",
    "transform",
    "vector",
]
