"""Runs a tile program in numpy, one program of the grid after the other: the meaning of docs/tile.md.

Slow on purpose: it is what the lowerings are tested against, and it shares no code with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from k3compiler.ir.bindings import ir

Array = np.ndarray[Any, np.dtype[Any]]

NUMPY = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.uint8),
    "i1": np.dtype(np.bool_),
}
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def run_tile_program(
    module: ir.Module, arguments: Mapping[str, Array | int | float], grid: Sequence[int]
) -> None:
    """Executes every program of ``grid`` (x, y, z) over numpy buffers, which are changed in place.

    ``arguments`` maps argument names to arrays (exact memory dtype) and scalars; symbols may be left out,
    they follow from the buffers' shapes.
    """
    function = next(iter(module.body.operations))
    values = _bind(function, arguments)
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                _Frame(dict(values), (x, y, z)).block(function.regions[0].blocks[0])


def _bind(function: Any, arguments: Mapping[str, Array | int | float]) -> dict[Any, Any]:
    names, symbols = [], {}
    for attributes in function.arg_attrs:
        name = attributes["tile.name"].value
        names.append(name)
        if "tile.shape" in attributes:
            array = arguments[name]
            assert isinstance(array, np.ndarray), f"buffer {name} wants an array"
            for extent, size in zip(attributes["tile.shape"], array.shape, strict=True):
                text = extent.value
                known = symbols.setdefault(text, size) if not text.isdigit() else int(text)
                assert known == size, f"buffer {name}: extent {text} is {known}, array has {size}"
    bound = {}
    for name, value in zip(names, function.regions[0].blocks[0].arguments, strict=True):
        given = arguments[name] if name in arguments else symbols[name]
        if isinstance(value.type, ir.MemRefType):
            want = NUMPY[str(value.type.element_type)]
            assert isinstance(given, np.ndarray), f"buffer {name} wants an array"
            assert given.dtype == want, f"buffer {name}: {want} wanted, got {given.dtype}"
        else:
            given = NUMPY[str(value.type)].type(given)
        bound[value] = given
    return bound


class _Frame:
    """The values of one program of the grid."""

    def __init__(self, values: dict[Any, Any], pid: tuple[int, int, int]) -> None:
        self.values, self.pid = values, pid

    def block(self, block: Any) -> list[Any]:
        """Runs a block; returns what its terminator yields."""
        for op in block.operations:
            name = op.operation.name
            operands = [self.values[v] for v in op.operation.operands]
            if name in ("scf.yield", "func.return"):
                return operands
            with np.errstate(all="ignore"):
                results = self.step(name, op, operands)
            for value, result in zip(op.operation.results, results, strict=True):
                self.values[value] = _typed(value.type, result)
        return []

    def step(self, name: str, op: Any, operands: list[Any]) -> list[Any]:
        if name == "scf.for":
            return self.loop(op, operands)
        if name == "scf.if":
            if operands[0]:
                self.block(op.regions[0].blocks[0])
            return []
        if name == "tile.program_id":
            return [self.pid[op.attributes["axis"].value]]
        if name == "tile.load":
            return [_load(op, self.values)]
        if name == "tile.store":
            _store(op, self.values)
            return []
        return [EVALUATE[name](op, *operands)]

    def loop(self, op: Any, operands: list[Any]) -> list[Any]:
        start, stop, step, *carried = operands
        body = op.regions[0].blocks[0]
        for i in range(int(start), int(stop), int(step)):
            for argument, value in zip(body.arguments, [np.int32(i), *carried], strict=True):
                self.values[argument] = value
            carried = self.block(body)
        return carried


def _typed(kind: ir.Type, value: Any) -> Any:
    if isinstance(kind, ir.RankedTensorType):
        want = NUMPY[str(kind.element_type)]
        array = np.asarray(value)
        shape = tuple(kind.shape)
        assert array.dtype == want and array.shape == shape, (
            f"{array.dtype}{array.shape} is not {kind}"
        )
        return array
    return NUMPY[str(kind)].type(value)


# -- memory --------------------------------------------------------------------------------------
def _where(
    op: Any, values: dict[Any, Any], shape: Sequence[int]
) -> tuple[Any, tuple[Any, ...], Any]:
    """The buffer, the clipped coordinates of each tile element, and which elements lie inside."""
    buffer = values[op.buffer]
    index = [int(values[v]) for v in op.indices]
    limits = [int(values[v]) for v in op.limits]
    coordinates: list[Any] = list(index)
    inside = np.ones(tuple(shape), bool)
    for axis, dim in enumerate(op.dims):
        offsets = np.arange(shape[axis])
        if axis == 0 and op.rows is not None:
            offsets = values[op.rows].astype(np.int64)
        view = [1] * len(shape)
        view[axis] = shape[axis]
        position = (index[dim] + offsets).reshape(view)
        end = min([buffer.shape[dim], *([limits[axis]] if limits else [])])
        inside &= (position >= 0) & (position < end)
        coordinates[dim] = np.clip(position, 0, max(buffer.shape[dim] - 1, 0))
    for dim, position in enumerate(coordinates):
        if isinstance(position, int):
            assert 0 <= position < buffer.shape[dim], (
                f"index {position} outside dim {dim} of {buffer.shape}"
            )
    return buffer, tuple(coordinates), inside


def _load(op: Any, values: dict[Any, Any]) -> Any:
    kind = op.operation.results[0].type
    shape = list(kind.shape) if isinstance(kind, ir.RankedTensorType) else []
    if not shape:
        buffer = values[op.buffer]
        return buffer[tuple(int(values[v]) for v in op.indices)]
    buffer, coordinates, inside = _where(op, values, shape)
    other = np.asarray(op.other.value).astype(buffer.dtype)
    if buffer.size == 0:
        return np.full(shape, other)
    return np.where(inside, np.broadcast_to(buffer[coordinates], inside.shape), other)


def _store(op: Any, values: dict[Any, Any]) -> None:
    value = values[op.operation.operands[0]]
    if np.ndim(value) == 0:
        values[op.buffer][tuple(int(values[v]) for v in op.indices)] = value
        return
    buffer, coordinates, inside = _where(op, values, value.shape)
    full = tuple(np.broadcast_to(c, inside.shape)[inside] for c in coordinates)
    buffer[full] = value[inside]


# -- arithmetic ----------------------------------------------------------------------------------
def _cast(op: Any, x: Any) -> Any:
    kind = op.operation.results[0].type
    text = str(kind.element_type if isinstance(kind, ir.RankedTensorType) else kind)
    want = NUMPY[text]
    x = np.asarray(x)
    if text == "f8E4M3FN":
        return np.clip(x.astype(np.float32), -448, 448).astype(want)
    if want.kind in "iu" and x.dtype.kind not in "iub":
        return np.trunc(x.astype(np.float32)).astype(want)
    if x.dtype.kind in "iub" or want == np.float32:
        return x.astype(want)
    return x.astype(np.float32).astype(want)


def _round_mantissa(x: Any, bits: int) -> Any:
    """f32 rounded to nearest even at ``bits`` of mantissa (tf32: 10)."""
    drop = 23 - bits
    word = np.ascontiguousarray(x, np.float32).view(np.uint32)
    finite = np.isfinite(x)
    rounded = word + np.uint32((1 << (drop - 1)) - 1) + ((word >> np.uint32(drop)) & np.uint32(1))
    rounded = (rounded >> np.uint32(drop)) << np.uint32(drop)
    return np.where(finite, rounded, word).view(np.float32)


def _dot(op: Any, a: Any, b: Any, acc: Any) -> Any:
    a, b = a.astype(np.float32), b.astype(np.float32)
    precision = op.attributes["precision"].value
    if precision == "tf32":
        a, b = _round_mantissa(a, 10), _round_mantissa(b, 10)
    elif precision == "bf16":
        a, b = (v.astype(ml_dtypes.bfloat16).astype(np.float32) for v in (a, b))
    parts = acc.shape[0] // a.shape[0]
    pairs = zip(np.split(a, parts, axis=1), np.split(b, parts, axis=0), strict=True)
    return (acc + np.concatenate([left @ right for left, right in pairs])).astype(np.float32)


def _decode(value: Any, form: str, scale: Any | None) -> Any:
    if form == "e2m1":
        nibbles = np.stack([value & 15, value >> 4], axis=-1).reshape(value.shape[0], -1)
        decoded = _E2M1[nibbles & 7] * np.where(nibbles & 8, -1, 1).astype(np.float32)
    else:
        decoded = value.astype(np.float32)
    if scale is None:
        return decoded
    factor = np.exp2(scale.astype(np.float32) - 127)
    factor = np.where(scale == 255, np.float32(np.nan), factor).astype(np.float32)
    return decoded * np.repeat(factor, 32, axis=1)


def _dot_scaled(op: Any, *_: Any, values: Mapping[str, Any]) -> Any:
    a = _decode(values["a"], op.a_format.value, values["a_scale"])
    b = _decode(values["b"], op.b_format.value, values["b_scale"])
    return (values["acc"] + a @ b.T).astype(np.float32)


def _dot_scaled_operands(op: Any, *operands: Any) -> Any:
    named: dict[str, Any] = dict(zip(("a", "b", "acc"), operands[:3], strict=True))
    rest = list(operands[3:])
    for side in ("a", "b"):
        has_scale = getattr(op, f"{side}_scale") is not None
        named[f"{side}_scale"] = rest.pop(0) if has_scale else None
    return _dot_scaled(op, values=named)


def _mx4_plane(op: Any, words: Any, scale: Any) -> Any:
    """Sign, exponent and mantissa of a word's value, plane after plane: 15 8 7 6, 12 5 4 3, 9 2 1 0, 14 13 11 10."""
    plane, bits = op.attributes["plane"].value, words.astype(np.int32)
    sign, high, middle, low = ((15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 13, 11, 10))[plane]
    size = 4 * (bits >> high & 1) + 2 * (bits >> middle & 1) + (bits >> low & 1)
    value = _E2M1[size] * (1.0 - 2.0 * (bits >> sign & 1))
    exponent = scale >> 8 * plane & 255
    factor = np.where(exponent == 255, np.inf, np.exp2(exponent - 253.0))
    return (value * factor).astype(NUMPY["bf16"])


def _constant(op: Any) -> Any:
    value = op.attributes["value"]
    if isinstance(value, ir.DenseElementsAttr):
        kind = value.type
        return np.full(
            list(kind.shape), value.get_splat_value().value, NUMPY[str(kind.element_type)]
        )
    return np.asarray(value.value).astype(NUMPY[str(value.type)])


def _reduce(op: Any, x: Any) -> Any:
    how = {
        "add": np.add,
        "max": np.fmax if x.dtype.kind == "f" else np.maximum,
        "min": np.fmin if x.dtype.kind == "f" else np.minimum,
    }
    return how[op.attributes["kind"].value].reduce(
        x, axis=op.attributes["axis"].value, dtype=x.dtype
    )


_INT_COMPARE = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
_FLOAT_COMPARE: dict[int, Callable[[Any, Any], Any]] = {
    1: np.equal,
    2: np.greater,
    3: np.greater_equal,
    4: np.less,
    5: np.less_equal,
    13: np.not_equal,
}


def _plain(compute: Callable[..., Any]) -> Callable[..., Any]:
    """An op that needs only its operands; the result keeps the first operand's dtype."""
    return lambda _op, *xs: np.asarray(compute(*xs)).astype(np.asarray(xs[0]).dtype)


def _shape_of(op: Any) -> list[int]:
    return list(op.operation.results[0].type.shape)


EVALUATE: dict[str, Callable[..., Any]] = {
    "arith.constant": _constant,
    "arith.addf": _plain(np.add),
    "arith.addi": _plain(np.add),
    "arith.subf": _plain(np.subtract),
    "arith.subi": _plain(np.subtract),
    "arith.mulf": _plain(np.multiply),
    "arith.muli": _plain(np.multiply),
    "arith.divf": _plain(np.divide),
    "arith.negf": _plain(np.negative),
    "arith.divsi": _plain(lambda a, b: np.trunc(a / b)),
    "arith.remsi": _plain(np.fmod),
    "arith.andi": _plain(np.bitwise_and),
    "arith.ori": _plain(np.bitwise_or),
    "arith.xori": _plain(np.bitwise_xor),
    "arith.shli": _plain(np.left_shift),
    "arith.shrui": _plain(lambda a, b: a.astype(np.uint32) >> b.astype(np.uint32)),
    "arith.minnumf": _plain(np.fmin),
    "arith.maxnumf": _plain(np.fmax),
    "arith.minsi": _plain(np.minimum),
    "arith.maxsi": _plain(np.maximum),
    "arith.cmpi": lambda op, a, b: _INT_COMPARE[op.attributes["predicate"].value](a, b),
    "arith.cmpf": lambda op, a, b: _FLOAT_COMPARE[op.attributes["predicate"].value](a, b),
    "arith.select": lambda _op, c, a, b: np.where(c, a, b).astype(np.asarray(a).dtype),
    "math.exp": _plain(np.exp),
    "math.exp2": _plain(np.exp2),
    "math.log": _plain(np.log),
    "math.sqrt": _plain(np.sqrt),
    "math.rsqrt": _plain(lambda x: 1 / np.sqrt(x)),
    "math.tanh": _plain(np.tanh),
    "math.absf": _plain(np.abs),
    "math.floor": _plain(np.floor),
    "math.roundeven": _plain(np.rint),
    "tile.iota": lambda op: np.arange(_shape_of(op)[0], dtype=np.int32),
    "tile.splat": lambda op, x: np.full(_shape_of(op), x, np.asarray(x).dtype),
    "tile.expand_dims": lambda op, x: np.expand_dims(x, op.attributes["axis"].value),
    "tile.broadcast": lambda op, x: np.broadcast_to(x, _shape_of(op)),
    "tile.trans": lambda _op, x: x.T,
    "tile.reshape": lambda op, x: x.reshape(_shape_of(op)),
    "tile.dot": _dot,
    "tile.dot_scaled": _dot_scaled_operands,
    "tile.mx4_plane": _mx4_plane,
    "tile.reduce": _reduce,
    "tile.scan": lambda op, x: np.cumsum(x, axis=op.attributes["axis"].value, dtype=x.dtype),
    "tile.cast": _cast,
    "tile.bitcast": lambda op, x: np.asarray(x).view(
        NUMPY[
            str(getattr(op.operation.results[0].type, "element_type", op.operation.results[0].type))
        ]
    ),
}
