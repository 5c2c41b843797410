"""Collects launches, kernels and buffers while the fused graph is walked."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from k3compiler.ir.location import Origin
from k3compiler.ir.tile_program import ArgumentInfo, ProgramInfo, describe
from k3compiler.kernels.base import build_program
from k3compiler.package.expr import Expr
from k3compiler.package.manifest import CallStep, CollectiveStep, LaunchStep, Step
from k3compiler.package.step_inputs import INPUT_SHAPES
from k3compiler.passes.lower_to_tile.refs import Ref, step_input

Scheduler = Callable[[str, Mapping[str, Any], str], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""(family, dimensions, phase) -> block sizes, and what the target's compiler takes beside the program."""
_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS = ("min", "max", "cdiv")


@dataclass(slots=True)
class Kernel:
    """One distinct tile program of the package, and who needs it."""

    symbol: str
    family: str
    params: dict[str, Any]
    options: dict[str, Any]
    op: str
    equation: str
    text: str
    info: ProgramInfo
    layers: set[int] = field(default_factory=set[int])


class Kernels:
    """All kernels of a package; equal programs are one kernel, whatever layer or phase asks."""

    def __init__(self) -> None:
        self.by_key: dict[str, Kernel] = {}

    def get(
        self, origin: Origin, family: str, params: dict[str, Any], options: dict[str, Any]
    ) -> Kernel:
        key = json.dumps([family, params, options], sort_keys=True)
        if key not in self.by_key:
            digest = hashlib.sha256(key.encode()).hexdigest()[:8]
            symbol = f"{family}_{digest}"
            label = f"{origin.op} [spec {origin.equation}]"
            module = build_program(family, params, symbol=symbol, label=label)
            text = module.operation.get_asm(enable_debug_info=True)
            self.by_key[key] = Kernel(
                symbol, family, params, options, origin.op, origin.equation, text, describe(module)
            )
        kernel = self.by_key[key]
        if origin.layer is not None:
            kernel.layers.add(origin.layer)
        return kernel


class PlanBuilder:
    """The launch list of one phase under construction."""

    def __init__(self, phase: str, kernels: Kernels, schedule: Scheduler) -> None:
        self.phase, self.kernels, self.schedule = phase, kernels, schedule
        self.steps: list[Step] = []
        self.buffers: dict[str, Ref] = {}
        self.inputs: dict[str, None] = {}
        self._refs: dict[Any, Ref] = {}

    # -- values ------------------------------------------------------------------------------
    def bind(self, value: Any, ref: Ref) -> Ref:
        """Says where a value of the graph lives."""
        self._refs[value] = ref
        return ref

    def ref(self, value: Any) -> Ref:
        """Where a value of the graph lives."""
        return self._refs[value]

    def has(self, value: Any) -> bool:
        """Whether it is known where a value of the graph lives."""
        return value in self._refs

    def workspace(self, hint: str, dtype: str, *shape: Expr) -> Ref:
        """A new buffer of the plan."""
        name = f"{hint}.{len(self.buffers)}"
        self.buffers[name] = Ref(name, dtype, shape)
        return self.buffers[name]

    # -- steps -------------------------------------------------------------------------------
    def launch(
        self,
        origin: Origin,
        family: str,
        dims: Mapping[str, Any],
        arguments: Mapping[str, Ref | str],
        *,
        options: Mapping[str, Any] | None = None,
        times: Expr | None = None,
    ) -> None:
        """Adds a launch of a family's kernel; with ``times`` an expression that is 1 or 0, and 0 leaves it out.

        ``options`` are for the target's compiler, beside and before what the schedule says.
        ``dims`` are the model's static parameters, the schedule adds the rest. ``arguments`` maps buffer
        names to refs (step inputs may be left out) and scalars to expressions; extents follow from the refs.
        """
        blocks, scheduled = self.schedule(family, dims, self.phase)
        chosen = {**scheduled, **(options or {})}
        kernel = self.kernels.get(origin, family, {**dims, **blocks}, chosen)
        given = {name: self._argument(arguments, name) for name in _buffer_names(kernel.info)}
        weights = [a.name for a in kernel.info.arguments if a.is_weight]
        written = [name for name in weights if not given[name].name.startswith("w:")]
        assert not written, f"{family}: {written} are no parameters, a kernel may write them"
        scalars = {k: v for k, v in arguments.items() if isinstance(v, str)}
        symbols = _match_symbols(kernel, given) | scalars
        values = [
            given[a.name].name if a.shape is not None else symbols[a.name]
            for a in kernel.info.arguments
        ]
        grid = [substitute(e, symbols) for e in kernel.info.grid]
        if times is not None:
            grid[0] = f"({grid[0]})*({times})"
        self.steps.append(
            LaunchStep(
                kernel.symbol, tuple(values), (grid[0], grid[1], grid[2]), origin.op, origin.layer
            )
        )

    def _argument(self, arguments: Mapping[str, Ref | str], name: str) -> Ref:
        given = arguments.get(name)
        if given is None:
            assert name in INPUT_SHAPES, f"no argument for kernel buffer {name}"
            given = step_input(name)
        assert isinstance(given, Ref), f"buffer {name} wants a ref, got {given}"
        if given.name not in INPUT_SHAPES:
            return given
        self.inputs[given.name] = None
        return _one_token_each(given) if self.phase == "decode" else given

    def call(self, origin: Origin, name: str, *arguments: Ref) -> None:
        """Adds a library call."""
        self.steps.append(CallStep(name, tuple(a.name for a in arguments), origin.op, origin.layer))

    def collective(self, origin: Origin, kind: str, group: str, *arguments: Ref) -> None:
        """Adds a collective over the elements of its first argument."""
        first = arguments[0]
        count = f"({first.rows})*{first.width}"
        names = tuple(a.name for a in arguments)
        self.steps.append(CollectiveStep(kind, names, count, group, origin.op, origin.layer))


def _one_token_each(ref: Ref) -> Ref:
    """A decode step has one token a sequence and takes logits of each: S and R are T."""
    return replace(ref, shape=tuple("T" if n in ("S", "R") else n for n in ref.shape))


def _buffer_names(info: ProgramInfo) -> list[str]:
    return [a.name for a in info.arguments if a.shape is not None]


def _match_symbols(kernel: Kernel, given: Mapping[str, Ref]) -> dict[str, str]:
    """The kernel's symbols as expressions of the plan, from the refs' extents."""
    symbols: dict[str, str] = {}
    for argument in kernel.info.arguments:
        if argument.shape is None:
            continue
        ref = given[argument.name]
        where = f"{kernel.symbol} argument {argument.name}"
        assert ref.dtype == argument.dtype, (
            f"{where}: {argument.dtype} wanted, {ref.name} is {ref.dtype}"
        )
        _match_shape(where, argument, ref, symbols)
    return symbols


def _match_shape(where: str, argument: ArgumentInfo, ref: Ref, symbols: dict[str, str]) -> None:
    assert argument.shape is not None
    shape = argument.shape
    symbolic = [i for i, n in enumerate(shape) if isinstance(n, str)]
    if len(shape) != len(ref.shape):
        assert all(i == 0 for i in symbolic), f"{where}: cannot match {shape} with {ref.shape}"
        fixed = [n for n in shape[1:] if isinstance(n, int)]
        size = 1
        for n in fixed:
            size *= n
        static_rows = isinstance(shape[0], int)
        want = ref.width * (int(ref.rows) if static_rows else 1)
        have = size * (int(shape[0]) if static_rows else 1)
        assert have == want, f"{where}: {shape} is not {ref.name} {ref.shape}"
    else:
        pairs = zip(shape, ref.shape, strict=True)
        same = all(isinstance(a, str) or a == b for a, b in pairs)
        assert same, f"{where}: {shape} is not {ref.name} {ref.shape}"
    assert not ref.pitch or 1 in symbolic, f"{where}: the second extent of a cache is its pitch"
    for i in symbolic:
        extent = ref.pitch if i == 1 and ref.pitch else str(ref.shape[i])
        known = symbols.setdefault(str(shape[i]), extent)
        assert known == extent, f"{where}: {shape[i]} is {known} and {extent}"


def substitute(rule: Expr, symbols: Mapping[str, str]) -> str:
    """An expression with its symbols replaced by expressions."""

    def replaced(match: re.Match[str]) -> str:
        name = match.group()
        if name in _FUNCTIONS or name not in symbols:
            return name
        text = symbols[name]
        return text if _SYMBOL.fullmatch(text) or text.isdigit() else f"({text})"

    return _SYMBOL.sub(replaced, str(rule))
