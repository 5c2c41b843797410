"""All that is unstable about FlyDSL: its MLIR bindings, op names, pass list, and the way to a code object.

FlyDSL 0.5's MLIR (``flydsl._mlir``) is driven by op names; neither its AST front end nor torch is imported. ISA text
comes from its own pass list; Triton's bundled LLVM assembles and links it (no ROCm).
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import re
import stat
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3compiler.errors import K3Error

SUPPORTED_MINORS = (
    "0.5",
)  # op names, pass names and their options are not stable between minor versions
_SHARED = "lds"
_PLAIN = {"fastmathFlags": "#llvm.fastmath<none>"}
_BUFFER_FLAGS = 0x27000  # raw buffer: 32-bit data, bounds checked
_PASSES = (
    "fly-rewrite-func-signature",
    "fly-canonicalize",
    "fly-rocdl-expand-ops",
    "fly-layout-lowering",
    "fly-int-swizzle-simplify",
    "canonicalize",
    "fly-convert-atom-call-to-ssa-form",
    "fly-promote-regmem-to-vectorssa",
    "convert-fly-to-rocdl",
    "canonicalize",
    "gpu.module(convert-scf-to-cf,cse,convert-rocdl-fastmath-ops,convert-gpu-to-rocdl{{chipset={chip} "
    "index-bitwidth=0 runtime=HIP use-bare-ptr-memref-call-conv=true}},fly-rocdl-cluster-attr)",
    "rocdl-attach-target{{O=2 abi=600 chip={chip} correct-sqrt=true daz=false fast=false features= finite-only=false "
    "module= triple=amdgcn-amd-amdhsa unsafe-math=false wave64=true}}",
    "convert-scf-to-cf",
    "convert-cf-to-llvm",
    "gpu-to-llvm{{use-bare-pointers-for-host=true use-bare-pointers-for-kernels=true}}",
    "convert-vector-to-llvm",
    "convert-arith-to-llvm",
    "convert-func-to-llvm",
    "reconcile-unrealized-casts",
    "gpu-module-to-binary{{format=isa}}",
)


def flydsl_version() -> str:
    """The installed FlyDSL's version, without importing it; ``none`` where there is none."""
    try:
        return importlib.metadata.version("flydsl")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def require_flydsl(where: str) -> None:
    """Raises K3Error ``K3-T003`` where FlyDSL is absent or of a minor version that was not tried."""
    version = flydsl_version()
    if ".".join(version.split(".")[:2]) in SUPPORTED_MINORS:
        return
    raise K3Error(
        "K3-T003",
        where=where,
        expected=f"flydsl {' or '.join(f'{minor}.x' for minor in SUPPORTED_MINORS)}",
        found=version,
        hint='pip install \'k3compiler[compile]\'; schedule entries with "form": "triton" do without it',
    )


class Value:
    """An SSA value with operators: i32 and i64 wrap and are unsigned where it matters, f32 is IEEE."""

    __slots__ = ("builder", "raw")

    def __init__(self, builder: KernelBuilder, raw: Any) -> None:
        self.builder, self.raw = builder, raw

    @property
    def type(self) -> str:
        return str(self.raw.type)

    def _with(self, name: str, other: Value | float, swap: bool = False) -> Value:
        b = self.builder
        value = other if isinstance(other, Value) else b.constant(other, self.type)
        pair = (value, self) if swap else (self, value)
        return b.op(f"arith.{name}", pair, self.type)

    @property
    def _is_float(self) -> bool:
        return "f32" in self.type

    def __add__(self, other: Value | float) -> Value:
        return self._with("addf" if self._is_float else "addi", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._with("subf" if self._is_float else "subi", other)

    def __rsub__(self, other: float) -> Value:
        return self._with("subf" if self._is_float else "subi", other, swap=True)

    def __mul__(self, other: Value | float) -> Value:
        return self._with("mulf" if self._is_float else "muli", other)

    def __floordiv__(self, other: int) -> Value:
        return self._with("divui", other)

    def __and__(self, other: Value | int) -> Value:
        return self._with("andi", other)

    def __or__(self, other: Value | int) -> Value:
        return self._with("ori", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._with("xori", other)

    def __lshift__(self, other: Value | int) -> Value:
        return self._with("shli", other)

    def __rshift__(self, other: Value | int) -> Value:
        return self._with("shrui", other)

    def compare(self, predicate: int, other: Value | float) -> Value:
        """i1; ``predicate`` as ``arith.cmpi`` (0 eq, 2 slt, 5 sge, 6 ult) or ``cmpf`` (4 olt) numbers it."""
        value = other if isinstance(other, Value) else self.builder.constant(other, self.type)
        name = "arith.cmpf" if self._is_float else "arith.cmpi"
        return self.builder.op(name, (self, value), "i1", predicate=f"{predicate} : i64")


@dataclass(frozen=True, slots=True)
class Copy:
    """A buffer: resource and whether it is bounds checked; see :meth:`KernelBuilder.buffer`."""

    resource: Value


class KernelBuilder:
    """One kernel in an MLIR context of FlyDSL's.

    Args:
        symbol: the kernel's name.
        arguments: an MLIR type for every argument (``!llvm.ptr<1>``, ``i32``).
        threads: of a workgroup.
    """

    def __init__(self, symbol: str, arguments: Sequence[str], *, threads: int) -> None:
        from flydsl._mlir import ir

        self._ir = ir
        self._context = ir.Context()
        self._context.enable_multithreading(False)
        self._context.load_all_available_dialects()
        signature = ", ".join(f"%a{i}: {kind}" for i, kind in enumerate(arguments))
        self._module = ir.Module.parse(
            f"module attributes {{gpu.container_module}} {{ gpu.module @kernels {{\n"
            f"llvm.mlir.global external @{_SHARED}() {{addr_space = 3 : i32, alignment = 1024 : i64}} : "
            f"!llvm.array<0 x i8>\n"
            f"gpu.func @{symbol}({signature}) kernel attributes "
            f"{{known_block_size = array<i32: {threads}, 1, 1>}} {{ gpu.return }} }} }}",
            self._context,
        )
        inner = self._module.body.operations[0].regions[0].blocks[0]
        block = inner.operations[1].regions[0].blocks[0]
        self.arguments = [Value(self, a) for a in block.arguments]
        self._points = [ir.InsertionPoint(block.operations[0])]
        self._location = ir.Location.name("k3compiler", context=self._context)
        self._constants: dict[tuple[str, str], Value] = {}

    # -- ops -------------------------------------------------------------------------------------
    def op(
        self, name: str, operands: Sequence[Value], result: str | None = None, **attributes: str
    ) -> Value:
        """Any op with at most one result; attributes as MLIR text."""
        ir = self._ir
        with self._context, self._location:
            made = ir.Operation.create(
                name,
                results=[] if result is None else [ir.Type.parse(result)],
                operands=[v.raw for v in operands],
                attributes={k: ir.Attribute.parse(v) for k, v in attributes.items()},
                ip=self._points[-1],
            )
        return Value(self, made.results[0] if result is not None else None)

    def constant(self, value: float, kind: str = "i32") -> Value:
        text = _literal(value, kind)
        key = (text, kind) if len(self._points) == 1 else None
        if key is None:
            return self.op("arith.constant", (), kind, value=text)
        if key not in self._constants:
            self._constants[key] = self.op("arith.constant", (), kind, value=text)
        return self._constants[key]

    def select(self, condition: Value, a: Value, b: Value | float) -> Value:
        other = b if isinstance(b, Value) else self.constant(b, a.type)
        return self.op("arith.select", (condition, a, other), a.type)

    def wide(self, value: Value) -> Value:
        """i32 to i64, not negative."""
        return self.op("arith.extui", (value,), "i64")

    def bitcast(self, value: Value, kind: str) -> Value:
        return self.op("llvm.bitcast", (value,), kind)

    # -- where this wave is ------------------------------------------------------------------------
    def thread(self) -> Value:
        return self.op("rocdl.workitem.id.x", (), "i32")

    def workgroup(self, axis: int) -> Value:
        return self.op(f"rocdl.workgroup.id.{'xyz'[axis]}", (), "i32")

    def uniform(self, value: Value) -> Value:
        """A value that is the same in all lanes, said so."""
        return self.op("rocdl.readfirstlane", (value,), value.type)

    def lanes_where(self, condition: Value) -> Value:
        """A bit a lane, i64."""
        return self.op("rocdl.ballot", (condition,), "i64")

    # -- control ---------------------------------------------------------------------------------
    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Effects only."""
        ir = self._ir
        with self._context, self._location:
            made = ir.Operation.create(
                "scf.if", operands=[condition.raw], regions=2, ip=self._points[-1]
            )
            block = made.regions[0].blocks.append()
            end = ir.Operation.create("scf.yield", ip=ir.InsertionPoint(block))
        self._points.append(ir.InsertionPoint(end))
        yield
        self._points.pop()

    def loop(self, count: int, carry: Sequence[Value], body: Any) -> list[Value]:
        """``for i in range(count): carry = body(i, carry)`` as ``scf.for``; the carry after it."""
        ir = self._ir
        bounds = [self.constant(v) for v in (0, count, 1)]
        kinds = [v.raw.type for v in carry]
        with self._context, self._location:
            made = ir.Operation.create(
                "scf.for",
                results=kinds,
                operands=[v.raw for v in (*bounds, *carry)],
                regions=1,
                ip=self._points[-1],
            )
            index = ir.IntegerType.get_signless(32)
            block = made.regions[0].blocks.append(
                index, *kinds, arg_locs=[self._location] * (1 + len(kinds))
            )
        self._points.append(ir.InsertionPoint(block))
        index_value, *carried = (Value(self, a) for a in block.arguments)
        results: Sequence[Value] = body(index_value, carried)
        self.op("scf.yield", results)
        self._points.pop()
        return [Value(self, r) for r in made.results]

    # -- memory ----------------------------------------------------------------------------------
    def at(self, pointer: Value, offset: Value) -> Value:
        """A pointer ``offset`` bytes on (i32 signed, or i64)."""
        return self.op(
            "llvm.getelementptr",
            (pointer, offset),
            pointer.type,
            rawConstantIndices="array<i32: -2147483648>",
            elem_type="i8",
        )

    def load(self, pointer: Value, kind: str) -> Value:
        return self.op("llvm.load", (pointer,), kind)

    def store(self, value: Value, pointer: Value) -> None:
        self.op("llvm.store", (value, pointer))

    def buffer(self, pointer: Value, num_bytes: Value) -> Copy:
        """A bounds-checked view of ``num_bytes`` (i32, unsigned): what lies outside reads as 0."""
        operands = (
            pointer,
            self.constant(0, "i16"),
            self.wide(num_bytes),
            self.constant(_BUFFER_FLAGS),
        )
        return Copy(self.op("rocdl.make.buffer.rsrc", operands, "!llvm.ptr<8>"))

    def read(self, buffer: Copy, lane_bytes: Value, uniform_bytes: Value, kind: str) -> Value:
        operands = (buffer.resource, lane_bytes, uniform_bytes)
        return self.op("rocdl.raw.ptr.buffer.load", operands, kind, aux="0 : i32")

    def shared(self) -> Value:
        """The start of LDS, which the launch gives (no part of it is static)."""
        return self.op("llvm.mlir.addressof", (), "!llvm.ptr<3>", global_name=f"@{_SHARED}")

    def copy_to_shared(
        self, buffer: Copy, shared: Value, lane_bytes: Value, uniform_bytes: Value
    ) -> None:
        """16 bytes a lane, asynchronously; lanes lie end to end from ``shared`` (uniform)."""
        sixteen, zero = self.constant(16), self.constant(0)
        operands = (buffer.resource, shared, sixteen, lane_bytes, uniform_bytes, zero)
        self.op("rocdl.raw.ptr.buffer.load.async.lds", operands, aux="0 : i32")

    def mark_copies(self) -> None:
        """Ends a group of asynchronous copies."""
        self.op("rocdl.asyncmark", ())

    def wait_for_copies(self) -> None:
        """Every marked group of this wave has landed; its own other loads may be under way."""
        self.op("rocdl.wait.asyncmark", (), count="0 : i16")

    def barrier(self) -> None:
        self.op("rocdl.s.barrier", ())

    def meet(self) -> None:
        """A barrier before which every wave's writes to LDS have landed."""
        for name in ("release", None, "acquire"):
            if name is None:
                self.barrier()
            else:
                order = {"release": "5 : i64", "acquire": "4 : i64"}[name]
                self.op("llvm.fence", (), ordering=order, syncscope='"workgroup"')

    def keep_order(self) -> None:
        """Nothing is scheduled across (keeps live ranges short)."""
        self.op("rocdl.sched.barrier", (), mask="#rocdl<sched_group_mask none>")

    # -- vectors and matrices ----------------------------------------------------------------------
    def element(self, vector: Value, index: int, kind: str = "i32") -> Value:
        return self.op("llvm.extractelement", (vector, self.constant(index)), kind)

    def vector(self, parts: Sequence[Value]) -> Value:
        kind = f"vector<{len(parts)}x{parts[0].type}>"
        made = self.op("llvm.mlir.undef", (), kind)
        for index, part in enumerate(parts):
            made = self.op("llvm.insertelement", (made, part, self.constant(index)), kind)
        return made

    def zeros(self, count: int) -> Value:
        return self.op(
            "arith.constant", (), f"vector<{count}xf32>", value=f"dense<0.0> : vector<{count}xf32>"
        )

    def e2m1_pair(self, word: Value, scale: Value, byte: int) -> Value:
        """Two e2m1 of a word's byte times the power of two of ``scale`` (f32), as packed bf16 in an i32."""
        name = "rocdl.cvt.scalef32.pk.bf16.fp4"
        pair = self.op(name, (word, scale), "vector<2xbf16>", srcSelIndex=f"{byte} : i32")
        return self.bitcast(pair, "i32")

    def mfma_bf16(self, a: Value, b: Value, acc: Value) -> Value:
        """16x16x32: ``acc + A Bᵀ``; operands are vector<4xi32> of packed bf16."""
        ab = [self.bitcast(v, "vector<8xbf16>") for v in (a, b)]
        none = {"cbsz": "0 : i32", "abid": "0 : i32", "blgp": "#rocdl<mfma_perm_b none>"}
        return self.op("rocdl.mfma.f32.16x16x32.bf16", (*ab, acc), "vector<4xf32>", **none)

    def mfma_scaled(
        self, a: Value, b: Value, acc: Value, scales: tuple[Value, Value], select: tuple[int, int]
    ) -> Value:
        """16x16x128: e2m1 (vector<4xi32>) by e4m3 (vector<8xi32>), e8m0 bytes selected from the scale words."""
        return self.op(
            "rocdl.mfma.scale.f32.16x16x128.f8f6f4",
            (a, b, acc, *scales),
            "vector<4xf32>",
            cbsz="#rocdl<matrix_format fp4_e2m1>",
            blgp="#rocdl<matrix_format fp8_e4m3>",
            opselA=f"{select[0]} : i32",
            opselB=f"{select[1]} : i32",
        )

    def unsigned_max_halves(self, a: Value, b: Value) -> Value:
        """Two u16 maxima of i32 words."""
        pair = [self.bitcast(v, "vector<2xi16>") for v in (a, b)]
        return self.bitcast(self.op("arith.maxui", pair, "vector<2xi16>"), "i32")

    def unsigned_max(self, a: Value, b: Value | int) -> Value:
        other = b if isinstance(b, Value) else self.constant(b)
        return self.op("arith.maxui", (a, other), "i32")

    def exp2(self, x: Value) -> Value:
        """2^x within an ulp; below 2^-126 it is 0."""
        return self.op("rocdl.exp2", (x,), "f32")

    def reciprocal(self, x: Value) -> Value:
        """1 / x within an ulp."""
        return self.op("rocdl.rcp", (x,), "f32")

    def from_lane(self, value: Value, lane: Value) -> Value:
        """i32: what another lane of the wave holds."""
        return self.op("rocdl.ds_bpermute", (lane << 2, value), "i32")

    def to_e4m3(self, parts: Sequence[Value]) -> Value:
        """Four f32 of at most 448 in size to nearest even, as the bytes of an i32."""
        word = self.constant(0)
        for half in range(2):
            pair = (parts[2 * half], parts[2 * half + 1], word)
            word = self.op("rocdl.cvt.pk.fp8.f32", pair, "i32", wordSel=f"{half} : i1")
        return word

    def clamped(self, x: Value, size: float) -> Value:
        """f32 between -size and size; NaN may become either."""
        low = self.op("llvm.intr.minnum", (x, self.constant(size, "f32")), "f32", **_PLAIN)
        return self.op("llvm.intr.maxnum", (low, self.constant(-size, "f32")), "f32", **_PLAIN)

    def absolute(self, x: Value) -> Value:
        return self.op("llvm.intr.fabs", (x,), "f32", **_PLAIN)

    def to_bf16(self, parts: Sequence[Value]) -> Value:
        """f32 to nearest even, as a vector of bf16."""
        return self.op("arith.truncf", (self.vector(parts),), f"vector<{len(parts)}xbf16>")

    # -- out -------------------------------------------------------------------------------------
    def assembly(self, chip: str) -> str:
        """ISA text.

        Raises:
            RuntimeError: a pass or LLVM refuses it (LLVM says so on standard error only).
        """
        from flydsl._mlir.dialects import gpu
        from flydsl._mlir.passmanager import PassManager

        ir = self._ir
        passes = ",".join(p.format(chip=chip) for p in _PASSES)
        with self._context, _watched_errors() as written:
            self._module.operation.verify()
            PassManager.parse(f"builtin.module({passes})").run(self._module.operation)
            faults = [line for line in written() if "error:" in line]
        if faults:
            raise RuntimeError(faults[0].strip())
        binary = next(o for o in self._module.body.operations if o.operation.name == "gpu.binary")
        objects = ir.ArrayAttr(binary.operation.attributes["objects"])
        return gpu.ObjectAttr(objects[0]).object.decode()


def link(assembly: str, chip: str) -> bytes:
    """A code object of ISA text, through Triton's bundled LLVM."""
    from triton._C.libtriton import amd  # pyright: ignore[reportAttributeAccessIssue]
    from triton.backends.amd.compiler import assemble_amdgcn

    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "kernel.o", Path(folder) / "kernel.hsaco"
        source.write_bytes(assemble_amdgcn(assembly, chip, ""))
        amd.link_hsaco(str(source), str(result))
        return result.read_bytes()


def _literal(value: float, kind: str) -> str:
    if kind == "f32":
        return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08X} : f32"
    width = int(re.sub(r"\D", "", kind))
    wrapped = int(value) & (1 << width) - 1
    return f"{wrapped - (1 << width) if wrapped >> (width - 1) else wrapped} : {kind}"


@contextmanager
def _watched_errors() -> Iterator[Any]:
    """What is written to standard error meanwhile, as a function; it still goes there."""
    is_readable = fcntl.fcntl(2, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    if is_readable and stat.S_ISREG(os.fstat(2).st_mode):
        start = os.lseek(2, 0, os.SEEK_END)

        def since() -> list[str]:
            size = os.fstat(2).st_size - start
            return os.pread(2, size, start).decode(errors="replace").splitlines()

        yield since
        return
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)

        def written() -> list[str]:
            return os.pread(2, os.fstat(2).st_size, 0).decode(errors="replace").splitlines()

        try:
            yield written
        finally:
            text = "\n".join(written())
            os.dup2(kept, 2)
            os.close(kept)
            os.write(2, text.encode())
