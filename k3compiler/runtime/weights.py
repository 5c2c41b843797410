"""Filling the package's parameters from a mapped checkpoint, one at a time.

A SOURCE tree (docs/package.md) is parsed into nodes that know their shape and can write themselves
into a destination view, so nothing but the destination is ever allocated (a reshape or transpose of
a strided view needs one temporary of its own size).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from k3compiler.dtypes import NUMPY_DTYPES, SCALE_NAN, numpy_dtype
from k3compiler.errors import K3Error
from k3compiler.package.checkpoint_names import canonical_names
from k3compiler.package.expr import Expr, evaluate
from k3compiler.package.manifest import ParamRecord, WeightMap
from k3compiler.package.shuffles import SHUFFLES

Array = NDArray[Any]

_FLOATS = frozenset({"f32", "bf16", "f16"})
_SCALE_SUFFIX = "weight_scale"
_LISTED_FAULTS = 8


class Checkpoint(Protocol):
    """Named tensors; ``k3compiler.package.safetensors_map.CheckpointFiles`` is one."""

    def names(self) -> list[str]: ...

    def info(self, name: str) -> tuple[str, tuple[int, ...]]: ...

    def read(self, name: str) -> Array: ...


class WeightLoader:
    """Evaluates SOURCE trees for one rank.

    Args:
        checkpoint: the tensors; the ``language_model.`` prefix and legacy names are understood.
        rank: tensor parallel rank, bound to the symbol ``rank``.
        allow_nan_scales: load experts whose scale byte is 255 (NaN) instead of refusing them.
    """

    def __init__(
        self, checkpoint: Checkpoint, *, rank: int = 0, allow_nan_scales: bool = False
    ) -> None:
        self._checkpoint = checkpoint
        self._stored = canonical_names(checkpoint.names())
        self._symbols = {"rank": rank}
        self._allow_nan_scales = allow_nan_scales

    def check(self, weights: WeightMap) -> None:
        """Check every parameter against the checkpoint's headers; reads no data.

        Raises:
            K3Error: K3-R001 with the list of faults.
        """
        faults = [fault for param in weights.params for fault in self._faults(param)]
        if not faults:
            return
        shown = faults[:_LISTED_FAULTS]
        more = [f"and {len(faults) - len(shown)} more"] if len(faults) > len(shown) else []
        raise K3Error(
            "K3-R001",
            where="checkpoint",
            expected="every tensor that the package's weights.json names",
            found="; ".join([*shown, *more]),
            hint="is this the checkpoint that the package was compiled for?",
        )

    def _faults(self, param: ParamRecord) -> Iterator[str]:
        node = parse_source(param.source, self._symbols)
        missing = [leaf.name for leaf in node.leaves() if leaf.name not in self._stored]
        if missing:
            yield from (f"{name} is missing" for name in missing)
            return
        fits = (self._kind_fits(leaf.name, param.dtype) for leaf in node.leaves())
        yield from (fault for fault in fits if fault)
        try:
            shape = node.shape(self)
        except _Misfit as misfit:
            yield str(misfit)
            return
        if shape != param.shape:
            yield f"{param.name} would be {list(shape)} instead of {list(param.shape)}"

    def _kind_fits(self, name: str, want: str) -> str:
        have = self._checkpoint.info(self._stored[name])[0]
        if have == want or (have in _FLOATS and want in _FLOATS):
            return ""
        return "" if want == "i8" and have in ("e4m3", "e8m0", "int8") else f"{name} is {have}"

    def load(self, param: ParamRecord, out: Array) -> None:
        """Write one parameter into ``out`` (``param.shape``, the numpy type of ``param.dtype``).

        Raises:
            K3Error: K3-R002 a NaN scale, K3-R001 (see :meth:`check`).
        """
        assert out.shape == param.shape, f"{param.name}: {out.shape} is not {param.shape}"
        assert out.dtype == numpy_dtype(param.dtype), f"{param.name}: {out.dtype}"
        parse_source(param.source, self._symbols).write(self, out)

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """The shape of a checkpoint tensor by its canonical name."""
        return self._checkpoint.info(self._stored[name])[1]

    def copy(self, name: str, index: tuple[slice, ...], out: Array) -> None:
        """Copy ``tensor[index]`` into ``out``, converting between float types."""
        data = self._checkpoint.read(self._stored[name])[index]
        if out.dtype == np.uint8 and data.dtype != np.uint8:
            data = data.view(np.uint8)
        if name.endswith(_SCALE_SUFFIX) and data.dtype == np.uint8 and not self._allow_nan_scales:
            _refuse_nan_scale(name, data)
        out[...] = data


def _refuse_nan_scale(name: str, scale: Array) -> None:
    bad = np.argwhere(scale == SCALE_NAN)
    if not len(bad):
        return
    raise K3Error(
        "K3-R002",
        where=name,
        expected="scale bytes 0..254",
        found=f"{len(bad)} bytes of 255 (NaN), the first at {bad[0].tolist()} of the loaded slice",
        hint="the checkpoint is damaged; allow_nan_scales=True loads it all the same",
    )


class _Misfit(Exception):
    """A source that cannot have a shape, in words."""


class Source(Protocol):
    """A node of a SOURCE tree."""

    def leaves(self) -> Iterator[TensorSource]: ...

    def shape(self, loader: WeightLoader) -> tuple[int, ...]: ...

    def write(self, loader: WeightLoader, out: Array) -> None: ...


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A slice of one checkpoint tensor; ``bounds`` has one pair or None per leading axis."""

    name: str
    bounds: tuple[tuple[int, int] | None, ...]

    def leaves(self) -> Iterator[TensorSource]:
        yield self

    def shape(self, loader: WeightLoader) -> tuple[int, ...]:
        whole = loader.tensor_shape(self.name)
        if len(self.bounds) > len(whole):
            raise _Misfit(f"{self.name} has {len(whole)} axes, not {len(self.bounds)}")
        cuts = [*self.bounds, *[None] * (len(whole) - len(self.bounds))]
        for extent, cut in zip(whole, cuts, strict=True):
            if cut is not None and not 0 <= cut[0] <= cut[1] <= extent:
                raise _Misfit(f"{self.name} is {list(whole)}, without {cut[0]}..{cut[1]}")
        pairs = zip(whole, cuts, strict=True)
        return tuple(extent if cut is None else cut[1] - cut[0] for extent, cut in pairs)

    def write(self, loader: WeightLoader, out: Array) -> None:
        index = tuple(slice(None) if b is None else slice(*b) for b in self.bounds)
        loader.copy(self.name, index, out)


@dataclass(frozen=True, slots=True)
class ConcatSource:
    """Parts side by side along ``axis``."""

    parts: tuple[Source, ...]
    axis: int

    def leaves(self) -> Iterator[TensorSource]:
        for part in self.parts:
            yield from part.leaves()

    def shape(self, loader: WeightLoader) -> tuple[int, ...]:
        shapes = [part.shape(loader) for part in self.parts]
        rest = {(*s[: self.axis], *s[self.axis + 1 :]) for s in shapes}
        if len(rest) != 1 or self.axis >= len(shapes[0]):
            raise _Misfit(f"{next(self.leaves()).name} and others do not join: {shapes}")
        joined = sum(s[self.axis] for s in shapes)
        return (*shapes[0][: self.axis], joined, *shapes[0][self.axis + 1 :])

    def write(self, loader: WeightLoader, out: Array) -> None:
        start = 0
        before = (slice(None),) * self.axis
        for part in self.parts:
            stop = start + part.shape(loader)[self.axis]
            part.write(loader, out[(*before, slice(start, stop))])
            start = stop


@dataclass(frozen=True, slots=True)
class StackSource:
    """Like-shaped parts along a new axis 0 (the experts)."""

    parts: tuple[Source, ...]

    def leaves(self) -> Iterator[TensorSource]:
        for part in self.parts:
            yield from part.leaves()

    def shape(self, loader: WeightLoader) -> tuple[int, ...]:
        shapes = {part.shape(loader) for part in self.parts}
        if len(shapes) != 1:
            raise _Misfit(f"{next(self.leaves()).name} and its siblings differ: {sorted(shapes)}")
        return (len(self.parts), *shapes.pop())

    def write(self, loader: WeightLoader, out: Array) -> None:
        for index, part in enumerate(self.parts):
            part.write(loader, out[index])


@dataclass(frozen=True, slots=True)
class ReshapeSource:
    """The same elements in row-major order under another shape."""

    sizes: tuple[int, ...]
    of: Source

    def leaves(self) -> Iterator[TensorSource]:
        return self.of.leaves()

    def shape(self, loader: WeightLoader) -> tuple[int, ...]:
        inner = self.of.shape(loader)
        if prod(inner) != prod(self.sizes):
            raise _Misfit(f"{next(self.leaves()).name}: {list(inner)} into {list(self.sizes)}")
        return self.sizes

    def write(self, loader: WeightLoader, out: Array) -> None:
        inner = self.of.shape(loader)
        if out.flags.c_contiguous:
            self.of.write(loader, out.reshape(inner))
            return
        whole = np.empty(inner, out.dtype)
        self.of.write(loader, whole)
        out[...] = whole.reshape(self.sizes)


@dataclass(frozen=True, slots=True)
class TransposeSource:
    """Axes permuted as ``numpy.transpose`` does."""

    axes: tuple[int, ...]
    of: Source

    def leaves(self) -> Iterator[TensorSource]:
        return self.of.leaves()

    def shape(self, loader: WeightLoader) -> tuple[int, ...]:
        inner = self.of.shape(loader)
        if sorted(self.axes) != list(range(len(inner))):
            raise _Misfit(f"{next(self.leaves()).name}: axes {self.axes} of {list(inner)}")
        return tuple(inner[axis] for axis in self.axes)

    def write(self, loader: WeightLoader, out: Array) -> None:
        self.of.write(loader, out.transpose(np.argsort(self.axes)))


@dataclass(frozen=True, slots=True)
class PadSource:
    """Zeros before and after each axis."""

    widths: tuple[tuple[int, int], ...]
    of: Source

    def leaves(self) -> Iterator[TensorSource]:
        return self.of.leaves()

    def shape(self, loader: WeightLoader) -> tuple[int, ...]:
        inner = self.of.shape(loader)
        if len(inner) != len(self.widths):
            raise _Misfit(f"{next(self.leaves()).name}: {len(self.widths)} pads of {list(inner)}")
        return tuple(a + n + b for n, (a, b) in zip(inner, self.widths, strict=True))

    def write(self, loader: WeightLoader, out: Array) -> None:
        out[...] = np.zeros((), out.dtype)
        pairs = zip(self.widths, out.shape, strict=True)
        self.of.write(loader, out[tuple(slice(a, n - b) for (a, b), n in pairs)])


@dataclass(frozen=True, slots=True)
class ShuffleSource:
    """Matrices in a layout of ``package/shuffles.py``; stacked ones go through memory one at a time."""

    layout: str
    of: Source

    def leaves(self) -> Iterator[TensorSource]:
        return self.of.leaves()

    def shape(self, loader: WeightLoader) -> tuple[int, ...]:
        inner = self.of.shape(loader)
        if len(inner) < 2:
            raise _Misfit(f"{next(self.leaves()).name}: {self.layout} of {list(inner)}")
        return SHUFFLES[self.layout].shape(inner)

    def write(self, loader: WeightLoader, out: Array) -> None:
        if isinstance(self.of, StackSource):
            for index, part in enumerate(self.of.parts):
                ShuffleSource(self.layout, part).write(loader, out[index])
            return
        whole = np.empty(self.of.shape(loader), out.dtype)
        self.of.write(loader, whole)
        for index in np.ndindex(whole.shape[:-2]):
            SHUFFLES[self.layout].write(whole[index], out[index])


def parse_source(data: Mapping[str, Any], symbols: Mapping[str, int]) -> Source:
    """A SOURCE object as nodes, its expressions evaluated on ``symbols`` (``rank``).

    Raises:
        K3Error: K3-K003 where the JSON is not a SOURCE.
    """
    try:
        return _parse(data, symbols)
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise K3Error(
            "K3-K003",
            where="weights.json",
            expected="a SOURCE as docs/package.md says",
            found=f"{str(data)[:80]} ({type(fault).__name__}: {fault})",
        ) from None


def _parse(data: Mapping[str, Any], symbols: Mapping[str, int]) -> Source:
    match data:
        case {"tensor": str(name)}:
            return TensorSource(name, _bounds(data.get("slice"), symbols))
        case {"concat": parts, "axis": int(axis)}:
            return ConcatSource(tuple(_parse(p, symbols) for p in parts), axis)
        case {"stack": stack}:
            first, count = (evaluate(stack[key], symbols) for key in ("first", "count"))
            bounds = _bounds(stack.get("slice"), symbols)
            names = (stack["name"].replace("{e}", str(e)) for e in range(first, first + count))
            return StackSource(tuple(TensorSource(name, bounds) for name in names))
        case {"reshape": sizes, "of": inner}:
            whole = tuple(evaluate(size, symbols) for size in sizes)
            return ReshapeSource(whole, _parse(inner, symbols))
        case {"transpose": axes, "of": inner}:
            return TransposeSource(tuple(int(a) for a in axes), _parse(inner, symbols))
        case {"pad": widths, "of": inner}:
            pairs = tuple((evaluate(a, symbols), evaluate(b, symbols)) for a, b in widths)
            return PadSource(pairs, _parse(inner, symbols))
        case {"shuffle": str(layout), "of": inner}:
            return ShuffleSource(_known_layout(layout), _parse(inner, symbols))
        case _:
            raise ValueError("tensor, concat, stack, reshape, transpose, pad or shuffle")


def _bounds(
    cuts: Sequence[Sequence[Expr] | None] | None, symbols: Mapping[str, int]
) -> tuple[tuple[int, int] | None, ...]:
    if cuts is None:
        return ()
    return tuple(
        None if cut is None else (evaluate(cut[0], symbols), evaluate(cut[1], symbols))
        for cut in cuts
    )


def param_bytes(param: ParamRecord) -> int:
    """Bytes of one parameter on the device."""
    return prod(param.shape) * NUMPY_DTYPES[param.dtype].itemsize


def _known_layout(name: str) -> str:
    if name not in SHUFFLES:
        raise ValueError(f"layout {name}")
    return name
