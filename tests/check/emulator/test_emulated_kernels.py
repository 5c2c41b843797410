"""Whole kernels on the emulator: right numbers, and faults that it must see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from k3compiler.check.emulator.code_object import CodeObject, unpack_msgpack
from k3compiler.check.emulator.kernel import ORDERS, EmulatedKernel, classes
from k3compiler.errors import K3Error
from tests.check.emulator.code_objects import build_for, needs_emulator, scaled_sum

BLOCK, ROWS = 256, 40
S_BARRIER, S_NOP = 0xBF8A0000, 0xBF800000


@pytest.fixture(scope="module")
def code() -> bytes:
    return build_for(scaled_sum, "mi355x").files["hsaco"]


def launch(code: bytes, order: Any, x: Any, y: Any) -> Any:
    kernel = EmulatedKernel(code)
    grid = (-(-ROWS // 32), 1, 1)
    return kernel.run(grid, (BLOCK,), [x, y, ROWS], dynamic_lds_bytes=65536, order=order)


def sums(x: Any) -> Any:
    blocks = [x[i : i + 32] for i in range(0, ROWS, 32)]
    return np.concatenate([2 * b + b.sum(0) for b in blocks])


def inputs() -> tuple[Any, Any]:
    x = np.random.default_rng(4).standard_normal((ROWS, 64)).astype(np.float32)
    return x, np.full_like(x, np.nan)


@pytest.mark.t2
def test_the_note_says_arguments_and_registers(code: bytes) -> None:
    note = CodeObject(code).kernels["k"]
    assert note.wave_size == 64 and note.vgprs > 0 and note.vgpr_spills == 0
    kinds = [(a.offset, a.size, a.kind) for a in note.args]
    assert kinds[:3] == [(0, 8, "global_buffer"), (8, 8, "global_buffer"), (16, 4, "by_value")]


@pytest.mark.t2
@pytest.mark.parametrize("order", ORDERS, ids=["whole", "interleaved"])
def test_a_kernel_is_right_in_both_orders(code: bytes, order: Any) -> None:
    needs_emulator()
    x, y = inputs()
    result = launch(code, order, x, y)
    np.testing.assert_allclose(y, sums(x), rtol=1e-5, atol=1e-5)
    by_class = classes(result.counts)
    assert by_class["memory"] and by_class["lds"] and by_class["wait"]
    assert sum(by_class.values()) == result.instructions and result.num_waves == 8


@pytest.mark.t2
def test_a_missing_barrier_shows_in_one_of_the_orders(code: bytes) -> None:
    needs_emulator()
    barrier, nothing = S_BARRIER.to_bytes(4, "little"), S_NOP.to_bytes(4, "little")
    assert barrier in code
    wrong: list[bool] = []
    for order in ORDERS:
        x, y = inputs()
        launch(code.replace(barrier, nothing), order, x, y)
        wrong.append(not np.allclose(y, sums(x), rtol=1e-5, atol=1e-5))
    assert any(wrong)


@pytest.mark.t2
def test_a_buffer_that_is_too_small_is_seen(code: bytes) -> None:
    needs_emulator()
    x, y = inputs()
    with pytest.raises(MemoryError, match="outside every buffer"):
        launch(code, ORDERS[0], x, y[: ROWS // 2].copy())


def test_without_a_checkout_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from k3compiler.check.emulator.alu import load_alu

    load_alu.cache_clear()
    monkeypatch.setenv("TINYGRAD_SRC", "/nonexistent")
    with pytest.raises(K3Error, match="TINYGRAD_SRC") as caught:
        load_alu()
    assert caught.value.code == "K3-E005"
    load_alu.cache_clear()


def test_what_is_no_code_object_is_refused() -> None:
    with pytest.raises(ValueError, match="not an ELF"):
        CodeObject(b"#!/bin/sh\n" + bytes(100))


def test_messagepack_forms() -> None:
    packed = b"\x83\xa1a\x01\xa1b\x93\xc3\xc0\xcd\x01\x00\xd9\x02xy\xca\x3f\x80\x00\x00"
    assert unpack_msgpack(packed) == {"a": 1, "b": [True, None, 256], "xy": 1.0}
