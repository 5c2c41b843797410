"""Instructions that the emulator does itself: register layouts and memory rules, one wave at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from k3compiler.check.emulator.arena import Arena
from k3compiler.check.emulator.dispatch import override_of
from k3compiler.check.emulator.fields import F32, LANES, U32, Array
from k3compiler.check.emulator.launch import Descriptor
from k3compiler.check.emulator.machine import GFX942, GFX950, Machine
from k3compiler.check.emulator.wave import Wave


def machine(lds_bytes: int = 4096, flag: int = GFX950) -> Machine:
    return Machine(Arena(1 << 20), alu=None, flag=flag, lds_bytes=lds_bytes, scratch_bytes=0)


def run(of: Machine, wave: Wave, name: str, kind: str, raw: int) -> None:
    override = override_of(of, name, kind, raw)
    assert override is not None
    override(wave)


def product_word(destination: int, a: int, b: int, c: int, cbsz: int = 0, blgp: int = 0) -> int:
    sources = (a + 256) << 32 | (b + 256) << 41 | (c + 256) << 50
    return destination | cbsz << 8 | sources | blgp << 61


def place_operand(wave: Wave, register: int, matrix: Array, per_lane: int) -> None:
    """A bf16 matrix ``[16, K]`` as the hardware wants it: lane l has row l % 16, k from per_lane * (l // 16)."""
    bits = (np.ascontiguousarray(matrix, F32).view(U32) >> 16).astype(np.uint16)
    for lane in LANES:
        first = per_lane * (lane // 16)
        words = np.ascontiguousarray(bits[lane % 16, first : first + per_lane]).view(U32)
        wave.v[register : register + len(words), lane] = words


def test_bf16_product_has_the_hardware_layout() -> None:
    wave, rng = Wave(64, 0), np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, (16, 32)).astype(F32) for _ in range(2))
    place_operand(wave, 0, a, 8)
    place_operand(wave, 4, b, 8)
    wave.v[8:12] = np.full((4, 64), 1.0, F32).view(U32)
    run(machine(), wave, "V_MFMA_F32_16X16X32_BF16", "VOP3P_MFMA", product_word(12, 0, 4, 8))
    got = wave.v[12:16].view(F32)
    want = a @ b.T + 1
    for lane in LANES:
        np.testing.assert_array_equal(got[:, lane], want[4 * (lane // 16) :][:4, lane % 16])


def test_scales_255_and_0_of_a_scaled_product() -> None:
    """One row is NaN where its scale is 255, another 2^-127 of the rest."""
    wave = Wave(64, 0)
    wave.v[0:4], wave.v[4:12] = 0x22222222, 0x38383838  # 1.0 as e2m1, 1.0 as e4m3
    scale = np.full(64, 127, U32)
    scale[3], scale[5] = 255, 0  # k block 0 of rows 3 and 5
    wave.v[20], wave.v[21] = scale, 127
    prefix = 0xD3AC << 16 | (20 + 256) << 32 | (21 + 256) << 41
    word = product_word(16, 0, 4, 12, cbsz=4, blgp=0)
    name = "V_MFMA_SCALE_F32_16X16X128_F8F6F4"
    run(machine(), wave, name, "VOP3PX2", prefix | word << 64)
    got = wave.v[16:20].view(F32)
    rows = {4 * (int(lane) // 16) + i: got[i, lane] for lane in LANES for i in range(4)}
    assert np.isnan(rows[3]) and rows[5] == F32(96.0) and rows[4] == 128.0


def test_fp8_products_of_gfx942_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="FP8"):
        override_of(
            machine(flag=GFX942),
            "V_MFMA_F32_16X16X32_FP8_FP8",
            "VOP3P_MFMA",
            product_word(0, 0, 2, 4),
        )


def test_a_transposed_read_gives_lane_l_column_l() -> None:
    of, wave = machine(), Wave(64, 0)
    rows = np.arange(16 * 16, dtype=np.uint16).reshape(
        16, 16
    )  # 16 rows of 16 elements for the first 16 lanes
    of.lds.view(np.uint16)[:256] = rows.ravel()
    wave.v[1] = np.where(LANES < 16, 8 * LANES, 0)
    run(of, wave, "DS_READ_B64_TR_B16", "DS", 1 << 32 | 2 << 56)
    got = np.ascontiguousarray(wave.v[2:4].T).view(np.uint16)[:16]
    np.testing.assert_array_equal(got, rows[:4].T)


def test_lds_beyond_the_workgroups_is_refused() -> None:
    wave = Wave(64, 0)
    wave.v[1] = 4093
    with pytest.raises(MemoryError, match="LDS address"):
        run(machine(), wave, "DS_READ_B32", "DS", 1 << 32 | 2 << 56)


def test_a_copy_to_lds_lands_at_its_wait() -> None:
    of, wave = machine(), Wave(64, 0)
    at = of.arena.allocate(256)
    of.arena.put(at, np.arange(64, dtype=U32).tobytes())
    address = of.arena.base + at
    wave.s[8:12] = [address & 0xFFFFFFFF, address >> 32, 256, 0]
    wave.s[124] = 128  # M0
    wave.v[1] = 4 * LANES
    of.clear_lds()
    load = (
        1 << 12 | 1 << 16 | 1 << 32 | 2 << 48 | 128 << 56
    )  # offen, to LDS, v1, s[8:11], soffset 0
    run(of, wave, "BUFFER_LOAD_DWORD", "MUBUF", load)
    assert of.lds[32] == 0xFFFFFFFF
    run(of, wave, "S_WAITCNT", "SOPP", 0 | 1)  # one may be under way
    assert of.lds[32] == 0xFFFFFFFF
    run(of, wave, "S_WAITCNT", "SOPP", 0)
    np.testing.assert_array_equal(of.lds[32:96], np.arange(64))


def test_buffer_rows_out_of_range_read_zero_and_keep_memory() -> None:
    of, wave = machine(), Wave(64, 0)
    at = of.arena.allocate(256)
    of.arena.put(at, b"\x01" * 256)
    address = of.arena.base + at
    wave.s[8:12] = [address & 0xFFFFFFFF, address >> 32, 128, 0]
    wave.v[1] = 4 * LANES
    run(of, wave, "BUFFER_LOAD_DWORD", "MUBUF", 1 << 12 | 1 << 32 | 3 << 40 | 2 << 48 | 128 << 56)
    np.testing.assert_array_equal(wave.v[3], np.where(LANES < 32, 0x01010101, 0))
    wave.v[3] = 7
    run(of, wave, "BUFFER_STORE_DWORD", "MUBUF", 1 << 12 | 1 << 32 | 3 << 40 | 2 << 48 | 128 << 56)
    words = of.arena.words[at // 4 : at // 4 + 64]
    np.testing.assert_array_equal(words, np.where(LANES < 32, 7, 0x01010101))


def test_global_memory_is_checked() -> None:
    of, wave = machine(), Wave(64, 0)
    wave.v[1], wave.v[2] = 0x1000, 0
    with pytest.raises(MemoryError, match="64 lanes outside every buffer"):
        run(of, wave, "GLOBAL_LOAD_DWORD", "GLOBAL", 1 << 32 | 0x7F << 48 | 3 << 56)


def test_a_descriptor_says_which_registers_hold_what() -> None:
    raw = bytearray(64)
    raw[52:56] = (2 << 1 | 1 << 7 | 1 << 9).to_bytes(4, "little")  # two user registers, x and z
    raw[56:58] = (1 << 3).to_bytes(2, "little")  # the argument segment's address
    descriptor = Descriptor.of(bytes(raw))
    assert descriptor.user_registers(b"", 0x1_2345_6789) == [0x23456789, 1]
    assert descriptor.workgroup_registers((4, 5, 6)) == [4, 6]


def test_what_is_not_emulated_is_named() -> None:
    with pytest.raises(NotImplementedError, match="DS_FROB is not emulated"):
        override_of(machine(), "DS_FROB", "DS", 0)
    nothing: Any = SimpleNamespace()
    assert override_of(nothing, "V_ADD_F32_E32", "VOP2", 0) is None
