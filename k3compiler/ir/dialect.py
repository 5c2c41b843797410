"""How a dialect of ours is written.

A dialect is an empty class; an op is a class whose annotations are its operands, attributes and
results (checked by IRDL) with a ``faults`` method for what IRDL cannot say::

    class K3(Dialect, name="k3"):
        '''...'''

    class RmsNorm(K3Op, name="rms_norm"):
        x: Operand[Tensor]
        weight: Operand[Tensor]
        eps: FloatAttr
        y: Result[Tensor]

        def faults(self) -> Iterator[Fault]:
            yield from same("y", self.x, self.y)

where ``class K3Op(Checked, dialect=K3, traits=[Pure])`` once a dialect. Optional attributes are not
declared: name them in ``OPTIONAL`` and read them with :func:`optional`. No ``from __future__ import
annotations`` in such files: the annotations must be objects.
"""

# pyright: reportAttributeAccessIssue=false
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from k3compiler.ir.bindings import ext, ir

Dialect, Operand, Result, Pure = ext.Dialect, ext.Operand, ext.Result, ext.Pure
Tensor = ir.RankedTensorType
FloatAttr, IntegerAttr, StringAttr = ir.FloatAttr, ir.IntegerAttr, ir.StringAttr
BoolAttr, DictAttr = ir.BoolAttr, ir.DictAttr
if not hasattr(BoolAttr, "attr_name"):
    BoolAttr.attr_name = "builtin.integer"  # the binding lacks what IRDL calls an i1 attribute
if not hasattr(DictAttr, "attr_name"):
    DictAttr.attr_name = "builtin.dictionary"
DYNAMIC = ir.ShapedType.get_dynamic_size()

Fault = str | None


class Checked(ext.Operation):
    """Gives ops their verifier: all faults are collected and reported through the op's location."""

    OPTIONAL = ()  # names of attributes that may be absent
    EQUATION = ""  # section of the spec that says what the op computes

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        found = _all_faults(op)
        if found:
            op.operation.location.emit_error(f"{op.operation.name}: " + "; ".join(found))
        return not found

    def faults(self) -> Iterable[Fault]:
        """What is wrong with this op; None entries count as nothing."""
        return ()


def _all_faults(op: Any) -> list[str]:
    """Form first (what ``faults`` may rely on), then the op's own rules."""
    form = list(_form_faults(op))
    return [*_unknown_attributes(op), *(form or _rule_faults(op))]


def _rule_faults(op: Any) -> list[str]:
    found: list[str] = []
    try:
        for fault in op.faults():
            if fault:
                found.append(fault)
    except (AttributeError, IndexError, ValueError):  # a rank that no rule after it can live with
        found.append("operands: expected tensors of the ranks that the op's page gives")
    return found


class _Form(NamedTuple):
    """An op class's declaration."""

    operands: list[Any]
    attributes: list[Any]
    results: list[Any]
    known: frozenset[str]


@cache
def _form(op_class: Any) -> _Form:
    operands, attributes, results, _ = ext.partition_fields(op_class._fields)
    known = frozenset(f.name for f in attributes) | frozenset(op_class.OPTIONAL)
    return _Form(operands, attributes, results, known)


def _unknown_attributes(op: Any) -> Iterator[str]:
    known = _form(type(op)).known
    for name in op.operation.attributes:
        if name not in known and "." not in name and not name.endswith("SegmentSizes"):
            yield f"attribute {name}: expected one of {', '.join(sorted(known)) or 'none'}"


def _form_faults(op: Any) -> Iterator[str]:
    form = _form(type(op))
    given = op.operation.attributes
    for field in form.attributes:
        name, wanted = field.name, field.constraint
        if name not in given:
            yield f"attribute {name}: expected {_kind(wanted)}, found none"
        elif not _fits(given[name], wanted):
            yield f"attribute {name}: expected {_kind(wanted)}, found {given[name]}"
    operands = [v.type for v in op.operation.operands]
    yield from _value_faults("operand", given, form.operands, operands)
    results = [v.type for v in op.operation.results]
    yield from _value_faults("result", given, form.results, results)


def _value_faults(what: str, given: Any, fields: list[Any], types: list[Any]) -> Iterator[str]:
    segments = f"{what}SegmentSizes"
    sizes = list(given[segments]) if segments in given else [1] * len(fields)
    if len(sizes) != len(fields) or sum(sizes) != len(types):
        yield f"{what}s: expected {', '.join(f.name for f in fields)}, found {len(types)}"
        return
    start = 0
    for field, size in zip(fields, sizes, strict=True):
        for kind in types[start : start + size]:
            if not _fits(kind, field.constraint):
                yield f"{field.name}: expected {_kind(field.constraint)}, found {kind}"
        start += size


def _fits(thing: Any, constraint: Any) -> bool:
    if constraint is Any or not isinstance(constraint, type) or isinstance(thing, constraint):
        return True
    return getattr(thing, "type_name", "") == getattr(constraint, "type_name", None)


def foreign(type_class: Any) -> Any:
    """A type of one dialect as a constraint in another (IRDL looks names up dialect by dialect)."""
    return type(type_class.__name__, (ir.Type,), {"type_name": type_class.type_name})


def _kind(constraint: Any) -> str:
    named = getattr(constraint, "type_name", None) or getattr(constraint, "attr_name", None)
    return f"a {named.removeprefix('builtin.')}" if named else str(constraint)


def want(what: str, expected: object, found: object) -> Fault:
    """A fault unless both are equal."""
    return None if expected == found else f"{what}: expected {expected}, found {found}"


def one_of(what: str, allowed: Sequence[object], found: object) -> Fault:
    """A fault unless ``found`` is among ``allowed``."""
    choices = ", ".join(str(a) for a in allowed)
    return None if found in allowed else f"{what}: expected one of {choices}, found {found}"


def positive(what: str, number: float) -> Fault:
    """A fault unless the number is above zero."""
    return None if number > 0 else f"{what}: expected a positive number, found {number}"


def shape(value: Any) -> tuple[int | None, ...]:
    """A tensor's extents, None where symbolic."""
    return tuple(None if n == DYNAMIC else n for n in value.type.shape)


def element(value: Any) -> str:
    """A tensor's element type as text, e.g. ``f32``."""
    return str(value.type.element_type)


def shaped(what: str, value: Any, *expected: int | None) -> Fault:
    """A fault unless the tensor's shape is as expected (None = symbolic)."""
    return None if shape(value) == expected else want(what, _show(expected), _show(shape(value)))


def ranked(what: str, value: Any, rank: int) -> Fault:
    """A fault unless the tensor has this rank."""
    found = len(shape(value))
    return None if found == rank else f"{what}: expected rank {rank}, found {_show(shape(value))}"


def typed(what: str, value: Any, *allowed: str) -> Fault:
    """A fault unless the element type is among ``allowed``."""
    return one_of(f"{what} element type", allowed, element(value))


def same(what: str, expected: Any, found: Any) -> Fault:
    """A fault unless both have the same type."""
    return want(f"{what} type", str(expected.type), str(found.type))


def _show(extents: Sequence[int | None]) -> str:
    return "x".join("?" if n is None else str(n) for n in extents) or "scalar"


def optional(op: Any, name: str) -> Any | None:
    """The value of an optional attribute, None where absent."""
    attributes = op.operation.attributes
    return attributes[name].value if name in attributes else None


def attribute(value: object) -> Any:
    """A Python value as an attribute: bool, int (i64), float (f64), str, list and dict of those."""
    match value:
        case ir.Attribute():
            return value
        case bool():
            return ir.BoolAttr.get(value)
        case int():
            return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
        case float():
            return ir.FloatAttr.get_f64(value)
        case str():
            return ir.StringAttr.get(value)
        case None:
            return ir.UnitAttr.get()
        case list() | tuple():
            return ir.ArrayAttr.get([attribute(v) for v in value])
        case dict():
            return ir.DictAttr.get({str(k): attribute(v) for k, v in value.items()})
        case _:
            raise AssertionError(f"no attribute for {value!r}")


def plain(value: Any) -> Any:
    """The inverse of :func:`attribute`."""
    if isinstance(value, ir.ArrayAttr):
        return [plain(v) for v in value]
    if isinstance(value, ir.DictAttr):
        return {named.name: plain(named.attr) for named in value}
    return None if isinstance(value, ir.UnitAttr) else value.value


def tensor(element_type: str, *extents: int | None) -> Any:
    """A ranked tensor type, e.g. ``tensor("f32", None, 7168)``."""
    with ir.Location.unknown():
        dims = [DYNAMIC if n is None else n for n in extents]
        return ir.RankedTensorType.get(dims, ir.Type.parse(element_type))


def emit(
    op_class: Any,
    operands: Sequence[Any],
    results: Sequence[Any],
    location: Any,
    **attributes: object,
) -> Any:
    """Builds an op at the current insertion point.

    Args:
        operands: one entry a declared operand; a list (or None) for a variadic or optional one.
        results: result types, in lists likewise.
        attributes: Python values; None leaves an optional attribute out.

    Returns:
        The op view.
    """
    values, operand_sizes = _flattened(operands)
    types, result_sizes = _flattened(results)
    named = {k: attribute(v) for k, v in attributes.items() if v is not None}
    if op_class._ODS_OPERAND_SEGMENTS:
        named["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get(operand_sizes)
    if op_class._ODS_RESULT_SEGMENTS:
        named["resultSegmentSizes"] = ir.DenseI32ArrayAttr.get(result_sizes)
    made = ir.Operation.create(op_class.OPERATION_NAME, types, values, named, loc=location)
    return made.opview


def _flattened(entries: Sequence[Any]) -> tuple[list[Any], list[int]]:
    groups = [[] if e is None else list(e) if isinstance(e, list) else [e] for e in entries]
    return [value for group in groups for value in group], [len(group) for group in groups]
