"""Which dialects exist, and loading them into a context.

The table holds names, not classes: nothing is imported before a context is made, and this floor does
not import the one above it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

DIALECTS: dict[str, str] = {
    "k3": "k3compiler.dialects.k3:K3",
    "kda": "k3compiler.dialects.kda:Kda",
    "mla": "k3compiler.dialects.mla:Mla",
    "attn_res": "k3compiler.dialects.attn_res:AttnRes",
    "moe": "k3compiler.dialects.moe:Moe",
    "mx": "k3compiler.dialects.mx:Mx",
    "comm": "k3compiler.dialects.comm:Comm",
    "tile": "k3compiler.dialects.tile.ops:Tile",
}


def dialect_class(name: str) -> Any:
    """The class of a dialect by its IR name."""
    module, symbol = DIALECTS[name].split(":")
    return getattr(import_module(module), symbol)


def load_dialects(context: Any) -> None:
    """Loads every dialect of the table into ``context`` (a no-op for those already there)."""
    _stop_searching()
    with context:
        for name in DIALECTS:
            if not context.is_dialect_loaded(name):
                dialect_class(name).load()


def _stop_searching() -> None:
    """The bindings try to import a module for the dialect of every op they meet; failing again and again is slow."""
    for name in DIALECTS:
        module = f"torch_mlir.dialects.{name}"
        sys.modules.setdefault(module, ModuleType(module))
