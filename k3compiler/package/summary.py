"""What a package holds, in numbers: one row per kernel and per group of like layers.

Sizes are evaluated at a :class:`Point` (tokens, sequences, context), through the scalars that the plan's launches pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from k3compiler.errors import K3Error
from k3compiler.package.expr import cdiv, evaluate
from k3compiler.package.manifest import (
    CallStep,
    CollectiveStep,
    KernelRecord,
    LaunchStep,
    Manifest,
    Plan,
    Step,
)
from k3compiler.package.pitches import dense_pitches


@dataclass(frozen=True, slots=True)
class Point:
    """Where floors are evaluated.

    ``seqs`` sequences with ``context`` cached tokens each take ``tokens`` new ones in all.
    """

    tokens: int
    seqs: int
    context: int

    def symbols(self, manifest: Manifest) -> dict[str, int]:
        """The step's symbols (docs/package.md) at this point, on rank 0."""
        new_tokens = cdiv(self.tokens, self.seqs)
        pages = cdiv(self.context + new_tokens, manifest.page_tokens)
        return {
            "T": self.tokens,
            "S": self.seqs,
            "P": pages,
            "PAGES": self.seqs * pages + 1,
            "SLOTS": self.seqs + 1,
            "NC": self.seqs * cdiv(new_tokens, manifest.chunk_tokens),
            "NS": self.seqs,
            "KV": self.seqs * self.context + self.tokens,
            "R": self.seqs,
            "rank": 0,
            **dense_pitches(manifest),
        }


DEFAULT_POINTS: Mapping[str, Point] = {
    "prefill": Point(tokens=512, seqs=1, context=0),
    "decode": Point(tokens=1, seqs=1, context=1024),
}


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel. ``num_launches`` counts those of the phase; ``floor_bytes`` and ``floor_flops`` are of one launch.

    A floor is None where the phase does not launch the kernel or leaves one of its symbols to run time.
    """

    symbol: str
    op: str
    equation: str
    layers: str
    num_launches: int
    registers: int
    shared_bytes: int
    spill_bytes: int
    instructions: str
    floor_bytes: int | None
    floor_flops: int | None


KERNEL_HEADS: tuple[tuple[str, bool], ...] = (
    ("kernel", False),
    ("op", False),
    ("spec", False),
    ("layers", False),
    ("launches", True),
    ("registers", True),
    ("shared", True),
    ("spills", True),
    ("floor bytes", True),
    ("floor flops", True),
    ("matrix instructions", False),
)
"""Headings of a table of kernels, and whether the column holds numbers."""


def row_cells(row: KernelRow) -> tuple[str, ...]:
    """One row as text under :data:`KERNEL_HEADS`."""
    return (
        row.symbol,
        row.op,
        row.equation,
        row.layers,
        str(row.num_launches),
        str(row.registers or "-"),
        format_count(row.shared_bytes, "B"),
        format_count(row.spill_bytes, "B"),
        format_count(row.floor_bytes, "B"),
        format_count(row.floor_flops, "flop"),
        row.instructions,
    )


def markdown_table(manifest: Manifest, plan: Plan, point: Point) -> str:
    """The phase's kernels as a Markdown section."""
    lines = [
        [title for title, _ in KERNEL_HEADS],
        ["---:" if is_number else "---" for _, is_number in KERNEL_HEADS],
        *(row_cells(row) for row in kernel_rows(manifest, plan, point)),
    ]
    target = manifest.target
    title = f"## {target.name} ({target.isa}), {manifest.dtype}, {plan.phase}"
    where = f"Floors of one launch at {point.tokens} tokens, {point.seqs} sequences, {point.context} of context each."
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{title}\n\n{where}\n\n{table}\n"


def kernel_rows(manifest: Manifest, plan: Plan, point: Point) -> list[KernelRow]:
    """A row for every kernel of the package that ``plan`` launches, in order of first launch."""
    launches: dict[str, list[LaunchStep]] = defaultdict(list)
    for step in plan.steps:
        if isinstance(step, LaunchStep):
            launches[step.launch].append(step)
    symbols = plan_symbols(manifest, plan, point)
    kernels = {kernel.symbol: kernel for kernel in manifest.kernels}
    return [_row(kernels[name], steps, symbols) for name, steps in launches.items()]


def plan_symbols(manifest: Manifest, plan: Plan, point: Point) -> dict[str, int]:
    """The point's symbols and those that the plan derives from them."""
    symbols = point.symbols(manifest)
    for name, expr in plan.symbols.items():
        symbols[name] = evaluate(expr, symbols)
    return symbols


def launch_scalars(
    kernel: KernelRecord, step: LaunchStep, symbols: Mapping[str, int]
) -> dict[str, int]:
    """The kernel's own integer scalars as this launch binds them, beside the plan's symbols."""
    bound = dict(symbols)
    for arg, text in zip(kernel.args, step.args, strict=True):
        if arg.kind == "scalar" and not text.startswith("f:"):
            bound[arg.name] = evaluate(text, symbols)
    return bound


def storage_bytes(plan: Plan, symbols: Mapping[str, int]) -> int:
    """Workspace of the phase in bytes."""
    return sum(evaluate(block.bytes, symbols) for block in plan.storage)


def format_layers(layers: Iterable[int]) -> str:
    """``0-2, 4, 6`` for ``[0, 1, 2, 4, 6]``; ``-`` for none."""
    runs: list[list[int]] = []
    for layer in sorted(set(layers)):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "-"


def format_count(value: int | None, unit: str) -> str:
    """``1.53 MB``: three digits and a decimal prefix."""
    if value is None:
        return "-"
    scaled = float(value)
    prefixes = ["", "k", "M", "G", "T", "P"]
    while scaled >= 999.5 and len(prefixes) > 1:
        scaled /= 1000
        del prefixes[0]
    return f"{scaled:.3g} {prefixes[0]}{unit}"


def step_name(step: Step) -> str:
    """The kernel, library call or collective that a step runs."""
    match step:
        case LaunchStep():
            return step.launch
        case CallStep():
            return f"call {step.call}"
        case CollectiveStep():
            return f"collective {step.collective}"


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with the same ops in the same order; ``steps`` are those of the first."""

    layers: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def title(self) -> str:
        if not self.layers:
            return "outside the layers"
        word = "layer" if len(self.layers) == 1 else "layers"
        return f"{word} {format_layers(self.layers)}"


def layer_groups(plan: Plan) -> list[LayerGroup]:
    """The plan folded: steps outside the layers first, then each distinct layer once."""
    by_layer: dict[int | None, list[Step]] = defaultdict(list)
    for step in plan.steps:
        by_layer[step.layer].append(step)
    groups: dict[tuple[bool, tuple[str, ...]], list[int | None]] = defaultdict(list)
    for layer, steps in by_layer.items():
        groups[layer is None, tuple(step.op for step in steps)].append(layer)
    return [
        LayerGroup(tuple(n for n in layers if n is not None), tuple(by_layer[layers[0]]))
        for layers in sorted(
            groups.values(), key=lambda found: -1 if found[0] is None else found[0]
        )
    ]


def _row(kernel: KernelRecord, steps: list[LaunchStep], symbols: Mapping[str, int]) -> KernelRow:
    try:
        scalars = launch_scalars(kernel, steps[0], symbols)
        floor_bytes, floor_flops = (
            evaluate(kernel.floor.bytes, scalars),
            evaluate(kernel.floor.flops, scalars),
        )
    except K3Error as error:
        if error.code != "K3-K002":
            raise
        floor_bytes = floor_flops = None
    instructions = " ".join(f"{n} x{c}" for n, c in sorted(kernel.resources.instructions.items()))
    return KernelRow(
        symbol=kernel.symbol,
        op=kernel.op,
        equation=kernel.equation,
        layers=format_layers(step.layer for step in steps if step.layer is not None),
        num_launches=len(steps),
        registers=kernel.resources.registers,
        shared_bytes=kernel.launch.shared_bytes,
        spill_bytes=kernel.resources.spill_bytes,
        instructions=instructions or "-",
        floor_bytes=floor_bytes,
        floor_flops=floor_flops,
    )
