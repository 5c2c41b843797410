"""The shared object itself: its bytes, its symbols, what it refuses; and the plan runner."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Mapping

import numpy as np
import pytest

from k3compiler.dialects.tile.builder import Program
from k3compiler.dialects.tile.ops import Tile
from k3compiler.errors import K3Error
from k3compiler.ir.bindings import ir
from k3compiler.ir.context import print_module
from k3compiler.ir.tile_program import describe
from k3compiler.kernels.base import Param, build_program
from k3compiler.targets.cpu.kernels import argument_words, host_level, load_library
from k3compiler.targets.cpu.library import (
    LEVELS,
    Level,
    compile_library,
    compile_object,
    compile_runner,
    link,
)
from k3compiler.targets.cpu.runner import ROW_WORDS, SYNC_WORDS

pytestmark = pytest.mark.t1

ADD = {"cols": 64, "block": 64, "dtype": "f32"}
NORM = {"cols": 64, "block": 64, "eps": 1e-6, "dtype": "f32", "in_cols": 64, "in_offset": 0}


def _text(family: str, params: Mapping[str, Param], symbol: str) -> str:
    return print_module(build_program(family, params, symbol=symbol))


@pytest.mark.parametrize("level", LEVELS)
def test_same_bytes_from_another_process_and_in_any_order(level: Level) -> None:
    texts = [_text("add", ADD, "add"), _text("rms_norm", NORM, "norm")]
    script = (
        "import sys; from k3compiler.targets.cpu.library import compile_library; "
        f"sys.stdout.buffer.write(compile_library({texts!r}, {level!r}))"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert other == compile_library(texts[::-1], level)


def test_objects_link_to_the_same_library() -> None:
    level = host_level()
    texts = {"add": _text("add", ADD, "add"), "norm": _text("rms_norm", NORM, "norm")}
    objects = {name: compile_object(text, level) for name, text in texts.items()}
    image = link({**objects, "k3_run": compile_runner(level)})
    assert image == compile_library(list(texts.values()), level)
    assert b"_mlir_" not in image, "the engine's wrappers were kept"


def test_v3_code_uses_no_avx512_register() -> None:
    text = _text("gemm", {"N": 64, "K": 64, "in_cols": 64, "dtype": "f32", "block_m": 32, "block_n": 32,
                          "block_k": 32}, "gemm")  # fmt: skip
    sizes = {level: _evex_prefixes(compile_library([text], level)) for level in LEVELS}
    assert sizes["x86-64-v3"] * 20 < sizes["x86-64-v4"], sizes


def _evex_prefixes(image: bytes) -> int:
    """Bytes that start AVX-512 instructions (a few constants may look like one)."""
    return image.count(b"\x62\xf1") + image.count(b"\x62\xf2")


def test_a_symbol_outside_the_library_is_refused() -> None:
    level = host_level()
    text = _text("add", ADD, "add")
    with pytest.raises(K3Error, match="K3-T022"):
        link({"other": compile_object(text, level)})
    with pytest.raises(K3Error, match="two programs of that name"):
        compile_library([text, text], level)
    with pytest.raises(K3Error, match="x86-64-v3 or x86-64-v4"):
        compile_object(text, "x86-64")  # type: ignore[arg-type]


def _program(build: object) -> ir.Module:
    context = ir.Context()
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        Tile.load()
        program = Program("big", "test")
        with program.body():
            build(program)  # type: ignore[operator]
        return program.module


def test_too_much_stack_names_the_kernel() -> None:
    def body(p: Program) -> None:
        x, y = p.buffer("x", "f32", (1024, 1024)), p.buffer("y", "f32", (1024,), "w")
        y.store((0,), x.load((0, 0), (1024, 1024)).cumsum(0).sum(0))
        p.grid(1)

    with pytest.raises(K3Error) as caught:
        compile_object(_program(body), host_level())
    assert caught.value.code == "K3-T021" and caught.value.where == "big"


def test_math_in_bf16_is_refused() -> None:
    def body(p: Program) -> None:
        x, y = p.buffer("x", "bf16", (64,)), p.buffer("y", "bf16", (64,), "w")
        tile = x.load((0,), (64,))
        y.store((0,), tile + tile)
        p.grid(1)

    with pytest.raises(K3Error, match=r"K3-T020(.|\n)*elementwise math in f32"):
        compile_object(_program(body), host_level())


# -- the runner ----------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_runner_orders_launches_and_can_run_again(threads: int) -> None:
    """A chain a -> b -> c -> ... of adds, each reading what the launch before wrote, many times over."""
    module = build_program("add", ADD, symbol="add")
    info, launches, tokens = describe(module), 12, 23
    library = load_library(compile_library([module], host_level()))
    kernel = ctypes.cast(library.add, ctypes.c_void_p).value or 0
    rows = [np.zeros((tokens, 64), np.float32) for _ in range(launches + 1)]
    names = [a.name for a in info.arguments if a.shape is not None]
    one = np.ones((tokens, 64), np.float32)
    words = [
        argument_words(info, dict(zip(names, (rows[i], one, rows[i + 1]), strict=True)))
        for i in range(launches)
    ]
    table = np.zeros((launches, ROW_WORDS), np.int64)
    for i in range(launches):
        table[i, :7] = (kernel, words[i].ctypes.data, tokens, tokens, 1, 0, 1 + i % 3)
    sync = np.zeros(SYNC_WORDS, np.int64)
    library.k3_run.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def work(thread: int) -> None:
        for _ in range(40):
            library.k3_run(table.ctypes.data, launches, thread, threads, sync.ctypes.data)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive(), "the runner hangs"
    assert (rows[-1] == launches).all()
    assert (table[:, [5, 7]] == 0).all() and sync[0] == 0
