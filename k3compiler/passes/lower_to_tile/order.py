"""Order of state updates.

States are values in the graph and one buffer in the plan: whoever reads the old value runs before it is
overwritten.
"""

from __future__ import annotations

from typing import Any

UPDATES: dict[str, tuple[str, ...]] = {
    "kda.conv_state": ("conv_state",),
    "kda.output": ("state",),
    "kda.decode": ("conv_state", "state"),
    "mla.latent_write": ("cache",),
    "mla.norm_write": ("cache",),
}
"""Ops that overwrite an operand: names of the operands."""


def order_updates(function: Any) -> None:
    """Moves every op that overwrites a state behind the last reader of the old value.

    The graph is pure, so any order that respects its values is right; an op between that needs the new
    value would make the move impossible, and is a bug.
    """
    block = function.regions[0].blocks[0]
    for op in [o for o in block.operations if o.operation.name in UPDATES]:
        position = {o.operation: i for i, o in enumerate(block.operations)}
        readers = [
            use.owner
            for name in UPDATES[op.operation.name]
            for use in getattr(op, name).uses
            if use.owner != op.operation
        ]
        last = max(readers, key=lambda reader: position[reader], default=op.operation)
        if position[last] > position[op.operation]:
            users = [use.owner for value in op.operation.results for use in value.uses]
            assert all(position[u] > position[last] for u in users), (
                f"{op.operation.name} cannot wait"
            )
            op.operation.move_after(last)
