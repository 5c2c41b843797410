"""Rewrite patterns over a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from k3compiler.ir.bindings import ir, rewrite


class Pattern(NamedTuple):
    """One rewrite: tried on every op of class ``root``.

    ``apply(op, rewriter)`` returns True when it rewrote; it builds new ops inside ``with
    rewriter.ip`` and ends with ``rewriter.replace_op(op, values)``.
    """

    root: Any
    apply: Callable[[Any, Any], bool]


def rewrite_module(module: Any, patterns: Sequence[Pattern]) -> int:
    """Applies patterns greedily until none matches, and drops dead ops. Verifying is the caller's.

    Returns:
        How often a pattern applied.

    Raises:
        K3Error: whatever a pattern raises.
    """
    runner = _Runner()
    with module.context, ir.Location.unknown():
        table = rewrite.RewritePatternSet()
        for pattern in patterns:
            table.add(pattern.root, runner.wrap(pattern.apply))
        rewrite.apply_patterns_and_fold_greedily(module, table.freeze())
    if runner.error is not None:
        raise runner.error
    return runner.count


class _Runner:
    """Carries exceptions of patterns around the C++ driver, which cannot pass them on."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.count = 0

    def wrap(self, apply: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        def match_and_rewrite(op: Any, rewriter: Any) -> bool:
            if self.error is not None:
                return True
            try:
                done = apply(op.opview if hasattr(op, "opview") else op, rewriter)
            except Exception as error:  # re-raised by rewrite_module
                self.error = error
                return True
            self.count += done
            return not done  # the driver counts a falsy return as success

        return match_and_rewrite
