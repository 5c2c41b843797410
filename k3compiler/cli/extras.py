"""Optional parts of the installation: asked for by name, before anything fails deep inside."""

from __future__ import annotations

import importlib.util

from k3compiler.errors import K3Error

EXTRAS = {"compile": ("torch_mlir", "triton"), "cuda": ("torch", "cuda.bindings")}


def require_extra(extra: str, *, where: str) -> None:
    """Refuse to go on where an extra's packages are absent.

    Raises:
        K3Error: ``K3-E002`` naming the extra and what is missing of it.
    """
    missing = [name for name in EXTRAS[extra] if not _is_installed(name)]
    if missing:
        raise K3Error(
            "K3-E002",
            where=where,
            expected=f"the extra [{extra}] of k3compiler: {', '.join(EXTRAS[extra])}",
            found=f"not installed: {', '.join(missing)}",
            hint=f"pip install 'k3compiler[{extra}]'",
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package of a dotted name
        return False
