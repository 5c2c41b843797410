"""The seam to MLIR: contexts, dialect definition, text, verification, rewriting, locations."""

from k3compiler.ir.bindings import func, ir
from k3compiler.ir.context import new_context, parse_module, print_module, verify_module
from k3compiler.ir.location import Origin, origin_of
from k3compiler.ir.rewriting import Pattern, rewrite_module

__all__ = [
    "Origin",
    "Pattern",
    "func",
    "ir",
    "new_context",
    "origin_of",
    "parse_module",
    "print_module",
    "rewrite_module",
    "verify_module",
]
