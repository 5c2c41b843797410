"""From an instruction's name and bits to what runs it here; everything else runs on the arithmetic emulator."""

from __future__ import annotations

from k3compiler.check.emulator.convert import (
    lane_swap,
    pack_bf16,
    pack_fp8,
    scaled_conversion,
    three_input_bits,
    unpack_fp8,
)
from k3compiler.check.emulator.fields import bit, bits
from k3compiler.check.emulator.lds import lds_instruction
from k3compiler.check.emulator.machine import GFX942, Machine, Override
from k3compiler.check.emulator.matrix import matrix_product
from k3compiler.check.emulator.memory import memory_instruction
from k3compiler.check.emulator.subword import dpp, high_registers, sdwa
from k3compiler.check.emulator.wave import Wave

NO_EFFECT = frozenset(
    "S_NOP S_SETPRIO S_SLEEP S_INCPERFLEVEL S_DECPERFLEVEL S_TTRACEDATA S_SETHALT S_ICACHE_INV "
    "S_SET_GPR_IDX_OFF S_SENDMSG".split()
)
_MEMORY_KINDS = ("MUBUF", "GLOBAL", "FLAT", "SCRATCH")
_MODE, _FP16_OVERFLOW = 1, 23
_ALL_LANDED = 63


def override_of(machine: Machine, name: str, kind: str, raw: int) -> Override | None:
    """What runs an instruction instead of the arithmetic emulator.

    Raises:
        NotImplementedError: memory, matrix and LDS instructions that are not done here.
    """
    if kind in _MEMORY_KINDS:
        return _required(name, memory_instruction(machine, name, kind, raw))
    if kind == "DS":
        return _required(name, lds_instruction(machine, name, raw))
    if name.startswith(("V_MFMA", "V_SMFMA")):
        is_fnuz = machine.flag == GFX942 and ("FP8" in name or "BF8" in name)
        return _required(name, None if is_fnuz else matrix_product(name, kind, raw))
    if name.startswith("S_"):
        return _scalar(machine, name, raw)
    if name.startswith(("V_CVT_PK_F32_FP8", "V_CVT_PK_F32_BF8")):
        return unpack_fp8(machine, name, kind, raw)
    if kind.endswith("_DPP16"):
        return dpp(machine, name, kind, raw)
    if "_SDWA" in kind:
        return sdwa(machine, name, kind, raw)
    return high_registers(machine, name, kind, raw) or _vector(machine, name, kind, raw)


def _required(name: str, made: Override | None) -> Override:
    if made is None:
        raise NotImplementedError(f"{name} is not emulated")
    return made


def _vector(machine: Machine, name: str, kind: str, raw: int) -> Override | None:
    if name.startswith("V_CVT_SCALEF32"):
        return scaled_conversion(machine, name, raw)
    if name.startswith("V_CVT_PK_BF16_F32"):
        return pack_bf16(machine, name, raw)
    if name.startswith(("V_CVT_PK_FP8_F32", "V_CVT_PK_BF8_F32")):
        return pack_fp8(machine, name, raw)
    if name.startswith(("V_PERMLANE32_SWAP", "V_PERMLANE16_SWAP")):
        return lane_swap(name, kind, raw)
    if name.startswith("V_BITOP3"):
        return three_input_bits(name, raw)
    return None


def _scalar(machine: Machine, name: str, raw: int) -> Override | None:
    if name == "S_WAITCNT":
        most = raw & 15 | (raw >> 14 & 3) << 4
        return _nothing if most >= _ALL_LANDED else lambda wave: machine.wait(wave, most)
    if name.startswith("S_GETREG"):
        return lambda wave: wave.s.__setitem__(bits(raw, 22, 16), 0)
    if name == "S_SETREG_IMM32_B32":
        return _set_mode(raw)
    if name.startswith(("S_SETREG", "S_DCACHE", "S_ICACHE")):
        return _nothing
    if name in ("S_MEMTIME", "S_MEMREALTIME"):
        return _clock(bits(raw, 12, 6))
    return None


def _nothing(_wave: Wave) -> None:
    return


def _set_mode(raw: int) -> Override:
    """Whether fp8 conversions saturate."""
    field, first, count, value = raw & 63, raw >> 6 & 31, (raw >> 11 & 31) + 1, raw >> 32
    if field != _MODE or not first <= _FP16_OVERFLOW < first + count:
        return _nothing
    saturates = bool(bit(value, _FP16_OVERFLOW - first))

    def run(wave: Wave) -> None:
        wave.saturates = saturates

    return run


def _clock(register: int) -> Override:
    def run(wave: Wave) -> None:
        wave.s[register] = wave.num_executed & 0xFFFFFFFF
        wave.s[register + 1] = wave.num_executed >> 32

    return run
