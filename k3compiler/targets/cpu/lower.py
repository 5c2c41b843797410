"""From a tile program to MLIR text in the LLVM, arith, math, vector and scf dialects.

The function is ``void symbol(int64_t *args, int64_t lo, int64_t hi, int64_t gx, int64_t gy)`` (docs/package.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from k3compiler.targets.cpu.arithmetic import literal
from k3compiler.targets.cpu.dots import dot
from k3compiler.targets.cpu.evaluate import elementwise
from k3compiler.targets.cpu.formats import BYTES, kind_of
from k3compiler.targets.cpu.graph import Buffer, Op, Program, Value
from k3compiler.targets.cpu.memory import locate
from k3compiler.targets.cpu.nests import copy, materialize, reduce, scan, store, transpose_slot
from k3compiler.targets.cpu.plan import is_lazy_op
from k3compiler.targets.cpu.scaled import dot_scaled
from k3compiler.targets.cpu.state import Slot, State, attributes, memory_element
from k3compiler.targets.cpu.views import valid_of

_FLUSH_TO_ZERO = 0x8040  # results and operands, bits of MXCSR


def lower(program: Program, level: str) -> str:
    """The kernel as MLIR text, for an x86-64 psABI level.

    Raises:
        K3Error: K3-T020 for what cannot be lowered, K3-T021 where the tiles need too much stack.
    """
    s = State(program, level)
    _arguments(s)
    w = s.w
    with _flushing(s), w.loop("%lo", "%hi", w.i64(1)) as loop:
        _program_ids(s, loop.index)
        _block(s, program.body)
    signature = "(%args: !llvm.ptr, %lo: i64, %hi: i64, %gx: i64, %gy: i64)"
    head = f"llvm.func @{program.symbol}{signature} attributes {attributes(level)} {{"
    return "\n".join([*s.functions.values(), head, w.text(), "llvm.return", "}", ""])


@contextmanager
def _flushing(s: State) -> Iterator[None]:
    """Numbers below the smallest normal f32 are zero inside: decays underflow all the time, and each
    subnormal would cost a hundred cycles. Kernels with MX operands keep them (a scale may be 2^-127)."""
    w = s.w
    has_bytes = any("e4m3" in (v.dtype for v in (*op.operands, *op.results)) for op in s.plan.ops)
    if has_bytes or any(op.name == "tile.dot_scaled" for op in s.plan.ops):
        yield
        return
    before, inside = w.alloca(1, "i32"), w.alloca(1, "i32")
    w.do(f'llvm.call_intrinsic "llvm.x86.sse.stmxcsr"({before}) : (!llvm.ptr) -> ()')
    flags = w.load(before, "i32", 4)
    flags = w.emit(f"arith.ori {flags}, {w.constant(str(_FLUSH_TO_ZERO), 'i32')} : i32")
    w.store(flags, inside, "i32", 4)
    w.do(f'llvm.call_intrinsic "llvm.x86.sse.ldmxcsr"({inside}) : (!llvm.ptr) -> ()')
    yield
    w.do(f'llvm.call_intrinsic "llvm.x86.sse.ldmxcsr"({before}) : (!llvm.ptr) -> ()')


def _arguments(s: State) -> None:
    """Pointers and scalars out of the argument words."""
    w = s.w
    for position, argument in enumerate(s.program.arguments):
        word = w.address("%args", w.i64(position), "i64")
        if isinstance(argument, Buffer):
            s.pointers[argument.name] = w.load(word, "!llvm.ptr", 8)
        else:
            s.scalars[argument] = w.load(word, kind_of(argument.dtype, None), 4)


def _program_ids(s: State, index: str) -> None:
    """pid = x + gx (y + gy z)."""
    w = s.w
    rest = w.emit(f"arith.divui {index}, %gx : i64")
    x = w.sub(index, w.emit(f"arith.muli {rest}, %gx : i64"))
    z = w.emit(f"arith.divui {rest}, %gy : i64")
    y = w.sub(rest, w.emit(f"arith.muli {z}, %gy : i64"))
    s.program_ids = [w.narrow(v) for v in (x, y, z)]


def _block(s: State, ops: Sequence[Op]) -> None:
    for op in ops:
        if not s.plan.is_lazy(op):
            _op(s, op)
            s.release_after(op.end)


def _op(s: State, op: Op) -> None:
    if op.results and op.result.shape == () and op.name not in ("tile.reduce", "scf.for"):
        s.scalars[op.result] = _scalar(s, op)
        return
    match op.name:
        case "scf.for":
            _loop(s, op)
        case "scf.if":
            with s.w.when(s.scalar(op.operands[0])):
                _block(s, op.body)
        case "tile.store":
            store(s, op)
        case "scf.yield":
            pass
        case _:
            _tile(s, op)


def _scalar(s: State, op: Op) -> str:
    """An op on scalars, emitted where it stands."""
    match op.name:
        case "arith.constant":
            text = literal(op.attributes["value"], op.result.dtype)
            return s.w.constant(text, kind_of(op.result.dtype, None))
        case "tile.program_id":
            return s.program_ids[op.attributes["axis"].value]
        case "tile.load":
            assert op.access is not None
            place = locate(s, op.access, ())
            return s.w.load(place.pointer, memory_element(op.result.dtype), BYTES[op.result.dtype])
        case _:
            return elementwise(s, op, [s.scalar(v) for v in op.operands], None)


def _tile(s: State, op: Op) -> None:
    """An op whose result gets a buffer (or, of a reduction to a scalar, a value)."""
    value = op.result
    if not s.plan.roots.get(value) and value.shape:
        return
    if op.name == "tile.reduce" and value.shape == ():
        total = reduce(s, op, None)
        assert total is not None
        s.scalars[value] = total
        return
    slot, is_own = _target(s, op, value)
    match op.name:
        case "tile.reduce":
            reduce(s, op, slot)
        case "tile.scan":
            scan(s, op, slot)
        case "tile.dot" | "tile.dot_scaled":
            if s.slot_of(op.operands[2]) is not slot:
                materialize(s, op.operands[2], slot)
            (dot if op.name == "tile.dot" else dot_scaled)(s, op, slot)
        case "tile.trans":
            _transpose(s, op, slot)
        case _ if is_lazy_op(op):
            if op.name in ("tile.load", "tile.cast"):
                s.valid[value] = valid_of(s, value)
            materialize(s, value, slot)
        case _:
            raise s.refuse("op", "an op of docs/tile.md", op.name)
    if is_own:
        s.slots[value] = slot
    else:
        s.share(slot, value)


def _transpose(s: State, op: Op, slot: Slot) -> None:
    source = op.operands[0]
    if source.matrix is None:
        materialize(s, source, slot)
        return
    held = s.slot_of(source)
    borrowed = None
    if held is None:
        held = borrowed = s.allocate(source.size, source.dtype)
        materialize(s, source, held)
    transpose_slot(s, held, slot, source.matrix)
    if borrowed is not None:
        s.release(borrowed)


def _target(s: State, op: Op, value: Value) -> tuple[Slot, bool]:
    """A buffer for the result: that of the loop-carried value it replaces, where nobody reads the old one
    any more; that of a dead accumulator; else a new one. The flag says whether it is the value's own."""
    reads = s.plan.reads[op]
    users = value.users
    loop, user = op.parent, users[0] if len(users) == 1 else None
    if loop is not None and user is not None and user.name == "scf.yield" and user.parent is loop:
        carried = loop.arguments[1 + user.operands.index(value)]
        if s.plan.last.get(carried, -1) <= op.end and _reads_in_place(op, reads, carried):
            return s.slots[carried], False
    if op.name in ("tile.dot", "tile.dot_scaled"):
        acc = op.operands[2]
        is_last = acc in s.slots and s.plan.last[acc] == op.end and not _is_carried(acc)
        if is_last and _reads_in_place(op, reads, acc):
            return s.slots[acc], False
    return s.allocate(value.size, value.dtype), True


def _is_carried(value: Value) -> bool:
    return value.op is not None and value in value.op.arguments


def _reads_in_place(op: Op, reads: dict[Value, bool], value: Value) -> bool:
    """Whether the op reads ``value`` only at the element that it writes next."""
    if value not in reads:
        return True
    if op.name in ("tile.dot", "tile.dot_scaled"):
        others = [v for v in op.operands if v is not op.operands[2]]
        return reads[value] and not any(_mentions(v, value) for v in others)
    return is_lazy_op(op) and op.name != "tile.trans" and reads[value]


def _mentions(value: Value, wanted: Value) -> bool:
    """Whether evaluating ``value`` may read ``wanted``."""
    if value is wanted:
        return True
    op = value.op
    if op is None or not is_lazy_op(op):
        return False
    return any(_mentions(v, wanted) for v in op.operands)


# -- loops ---------------------------------------------------------------------------------------
def _loop(s: State, op: Op) -> None:
    """``scf.for``: carried tiles live in one buffer each through all iterations."""
    w, carried = s.w, op.arguments[1:]
    inits, ending = op.operands[3:], op.body[-1] if op.results else None
    for value, init in zip(carried, inits, strict=True):
        if value.shape:
            slot = s.allocate(value.size, value.dtype)
            materialize(s, init, slot)
            s.slots[value] = slot
    scalars = [(v, i) for v, i in zip(carried, inits, strict=True) if not v.shape]
    carry = [(s.scalar(i), kind_of(i.dtype, None)) for _, i in scalars]
    low, high, step = (s.scalar(v) for v in op.operands[:3])
    with w.loop(low, high, step, carry=carry, index_type="i32") as loop:
        s.scalars[op.arguments[0]] = loop.index
        for (value, _), name in zip(scalars, loop.carried, strict=True):
            s.scalars[value] = name
        _block(s, op.body[:-1] if ending else op.body)
        if ending is not None:
            _yield(s, ending, carried)
            w.carry_on(loop, [s.scalar(v) for v in ending.operands if not v.shape])
    names = iter(loop.results)
    for value, result in zip(carried, op.results, strict=True):
        if not value.shape:
            s.scalars[result] = next(names)
            continue
        s.slots[result] = s.slots.pop(value)


def _yield(s: State, op: Op, carried: Sequence[Value]) -> None:
    """Moves the next values into the carried buffers, none before all its readers are through."""
    moves = [
        (new, old) for new, old in zip(op.operands, carried, strict=True)
        if new.shape and s.slot_of(new) is not s.slots[old]
    ]  # fmt: skip
    staged: list[tuple[Slot, Value]] = []
    for position, (new, old) in enumerate(moves):
        later = [v for v, _ in moves[position + 1 :]]
        is_safe = not any(_mentions(v, old) for v in later) and _is_pointwise(s, new, old)
        if is_safe and not any(_mentions(new, o) for _, o in moves[:position]):
            continue
        slot = s.allocate(new.size, new.dtype)
        materialize(s, new, slot)
        staged.append((slot, old))
    held = {old for _, old in staged}
    for new, old in moves:
        if old not in held:
            materialize(s, new, s.slots[old])
    for slot, old in staged:
        copy(s, slot, s.slots[old], old.size)
        s.release(slot)
    s.release_after(op.end)


def _is_pointwise(s: State, new: Value, old: Value) -> bool:
    found = s.plan.pointwise_reads(new)
    return found.get(old, True)
