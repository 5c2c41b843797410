"""How large a step is, and whether the device has room for it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from k3compiler.check.step.records import StepPoint
from k3compiler.dtypes import itemsize
from k3compiler.errors import K3Error
from k3compiler.package.expr import cdiv, evaluate
from k3compiler.package.manifest import Plan
from k3compiler.package.pitches import dense_pitches
from k3compiler.package.reader import Package
from k3compiler.runtime.device.base import Device
from k3compiler.runtime.state import state_records
from k3compiler.runtime.weights import param_bytes

SPARE_BYTES = 1 << 30  # of a GPU: modules, graphs, the allocator's rounding


def check_room(package: Package, points: Sequence[StepPoint], device: Device) -> None:
    """Refuse, with the numbers, what the device cannot hold."""
    free = device.free_bytes()
    weights = sum(param_bytes(p) for p in package.weights.params)
    for point in points:
        symbols = step_symbols(package, point) | {"rank": 0}
        records = state_records(package.manifest, [package.plan("decode")]).values()
        caches = sum(record.num_bytes(symbols) for record in records)
        workspace = _workspace_bytes(package.plan("decode"), symbols)
        need = weights + caches + workspace + SPARE_BYTES
        if need > free:
            raise K3Error(
                "K3-R013",
                where=f"batch {point.batch}, context {point.context}",
                expected=f"at most {free / 1e9:.1f} GB, which {device.name} has free",
                found=f"{need / 1e9:.1f} GB: weights {weights / 1e9:.1f}, caches {caches / 1e9:.1f}, "
                f"workspace {workspace / 1e9:.1f}, spare {SPARE_BYTES / 1e9:.1f}",
                hint="fewer sequences, a shorter context, or more ranks",
            )


def _workspace_bytes(plan: Plan, symbols: dict[str, int]) -> int:
    """Buffers side by side, and the blocks that they share when the step is timed."""
    whole = symbols | {name: evaluate(expr, symbols) for name, expr in plan.symbols.items()}
    apart = sum(
        prod(evaluate(n, whole) for n in b.shape) * itemsize(b.dtype)
        for b in plan.buffers
        if b.kind != "state"
    )
    return apart + sum(evaluate(block.bytes, whole) for block in plan.storage)


def page_columns(package: Package, point: StepPoint) -> int:
    return cdiv(point.context + 1, package.manifest.page_tokens)


def step_symbols(package: Package, point: StepPoint) -> dict[str, int]:
    columns = page_columns(package, point)
    rows = dict.fromkeys(("T", "S", "R"), bucket(package, point.batch))
    caches = {"P": columns, "PAGES": 1 + point.batch * columns, "SLOTS": 1 + point.batch}
    return rows | caches | dense_pitches(package.manifest)


def bucket(package: Package, batch: int) -> int:
    """The rows that a step of ``batch`` sequences is launched with."""
    return next((b for b in sorted(package.manifest.decode_buckets) if b >= batch), batch)
