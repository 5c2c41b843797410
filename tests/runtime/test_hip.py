"""The HIP device's packing against code objects' own notes, and its library calls against a stand-in."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from k3compiler.check.emulator.code_object import CodeObject, KernelArg, KernelNote
from k3compiler.check.runner import single_launch
from k3compiler.errors import K3Error
from k3compiler.package.manifest import ArgRecord, KernelRecord, LaunchRecord, TargetRecord
from k3compiler.runtime.device import hip
from k3compiler.runtime.device.cuda import CudaProgram
from k3compiler.runtime.device.hip import HipDevice, HipLibrary
from k3compiler.runtime.device.select import open_device

SOURCE = Path(__file__).with_name("hip_stand_in.c")


class Layout(ctypes.Structure):
    _fields_ = (
        ("num_args", ctypes.c_int32),
        ("sizes", ctypes.c_int32 * 16),
        ("offsets", ctypes.c_int32 * 16),
    )


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("hip") / "libamdhip64.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(SOURCE)], check=True)
    return str(path)


def explicit(note: KernelNote) -> list[KernelArg]:
    return [a for a in note.args if not a.kind.startswith("hidden_")]


def as_hip_reads(note: KernelNote, stand_in: str) -> None:
    """Tells the stand-in what the code object's note says of the arguments."""
    layout = Layout.in_dll(ctypes.CDLL(stand_in), "layout")
    args = explicit(note)
    layout.num_args = len(args)
    for index, argument in enumerate(args):
        layout.sizes[index], layout.offsets[index] = argument.size, argument.offset


def device_of(stand_in: str) -> Any:
    """A device over the stand-in, without torch."""
    device: Any = HipDevice.__new__(HipDevice)
    stream = SimpleNamespace(cuda_stream=0x77)
    device.torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda _: stream))
    device.driver, device.index, device.nvtx, device.graphs = HipLibrary(stand_in), 0, False, False
    device._kernels, device._modules = {}, []
    return device


def test_a_launch_packs_what_the_kernel_reads(stand_in: str) -> None:
    """Pointers whole, scalars and floats by their low half, at the offsets of the note."""
    record = KernelRecord(
        symbol="k",
        family="k",
        op="k",
        args=(
            ArgRecord("x", "buffer", "f32", ("T", 4)),
            ArgRecord("y", "buffer", "f32", ("T", 4), None, "w"),
            ArgRecord("T", "scalar", "i32"),
            ArgRecord("eps", "scalar", "f32"),
        ),
        grid=("T", "2", "1"),
        launch=LaunchRecord(num_warps=4, shared_bytes=98304),
        files={"hsaco": "k.hsaco"},
    )
    kinds = [(0, 8), (8, 8), (16, 4), (20, 4), (24, 8), (32, 8)]
    args = tuple(
        KernelArg(at, size, "by_value" if size == 4 else "global_buffer") for at, size in kinds
    )
    as_hip_reads(KernelNote("k", "k.kd", args, 40, 0, 0, 8, 0, 64, 256), stand_in)
    device = device_of(stand_in)
    device._package = SimpleNamespace(read=lambda _: b"\x7fELF")
    x = np.zeros((5, 4), np.float32)
    table = single_launch(
        record, {"x": x, "y": x, "T": 5, "eps": 1e-6}, hidden_slots=device.hidden_slots
    )
    table.bind(np.array([0x7F00_1234_5678, 0x7F00_0000_1000], np.int64))
    table.patch({"T": 5})
    CudaProgram(device, table).run([], None)
    seen = ctypes.CDLL(stand_in)
    launched = (ctypes.c_uint32 * 7).in_dll(seen, "launched")
    assert list(launched) == [5, 2, 1, 256, 1, 1, 98304]
    assert ctypes.c_uint64.in_dll(seen, "stream_seen").value == 0x77
    segment = bytes((ctypes.c_uint8 * 40).in_dll(seen, "segment"))
    want = struct.pack("<QQifQQ", 0x7F00_1234_5678, 0x7F00_0000_1000, 5, 1e-6, 0, 0)
    assert segment == want


def test_errors_of_the_library_name_the_kernel(stand_in: str) -> None:
    device = device_of(stand_in)
    record: Any = SimpleNamespace(
        symbol="absent", files={"hsaco": "a"}, launch=LaunchRecord(), args=()
    )
    device._package = SimpleNamespace(read=lambda _: b"\x7fELF")
    with pytest.raises(K3Error, match="hipErrorNotFound") as caught:
        device.kernel(record)
    assert caught.value.code == "K3-R009" and "absent" in caught.value.where
    device._package = SimpleNamespace(read=lambda _: b"junk")
    with pytest.raises(K3Error, match="cuModuleLoadData"):
        device.kernel(record)


def test_a_package_of_another_chip_is_refused(
    monkeypatch: pytest.MonkeyPatch, stand_in: str
) -> None:
    device = device_of(stand_in)
    device.name = "hip:0"
    device.torch.cuda.get_device_properties = lambda _: SimpleNamespace(
        gcnArchName="gfx950:sramecc+:xnack-"
    )
    device.torch.cuda.get_device_name = lambda _: "AMD Instinct MI355X"
    assert device.isa == "gfx950"
    package: Any = SimpleNamespace(
        manifest=SimpleNamespace(target=TargetRecord("mi300x", "hip", "gfx942"))
    )
    with pytest.raises(K3Error, match="gfx942") as caught:
        device.load(package)
    assert caught.value.code == "K3-K009"
    package.manifest.target = TargetRecord("mi355x", "hip", "gfx950")
    device.load(package)


def test_without_rocm_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(version=SimpleNamespace(hip=None), __version__="2.9+cpu")
    monkeypatch.setattr(hip, "import_torch", lambda: torch)
    with pytest.raises(K3Error, match="ROCm build of torch") as caught:
        open_device(None, TargetRecord("mi355x", "hip", "gfx950"))
    assert caught.value.code == "K3-R006" and "--on emulator" in caught.value.hint


@pytest.mark.t2
@pytest.mark.parametrize("form", ["triton", "flydsl"])
def test_the_slots_of_a_launch_are_the_notes_arguments(form: str, stand_in: str) -> None:
    """A real code object's note: pointers, then scalars, then at most the two hidden pointers."""
    pytest.importorskip("flydsl")
    from tests.targets.amd.flydsl_kernels import build, case_of, params_of, record_of

    params = params_of("moe_down", block_rows=16, inner=256, width=256)
    built = build("moe_down", params, form=form)
    record, case = record_of("moe_down", params, built, form), case_of("moe_down", params)
    note = CodeObject(built.files["hsaco"]).kernels["moe_down"]
    args = explicit(note)
    own, extra = args[: len(record.args)], args[len(record.args) :]
    assert [a.size for a in own] == [8 if a.kind == "buffer" else 4 for a in record.args]
    assert len(extra) <= HipDevice.hidden_slots and all(a.size == 8 for a in extra)
    assert note.wave_size == HipDevice.warp_threads
    table = single_launch(record, case.arguments, hidden_slots=HipDevice.hidden_slots)
    assert len(table.args) >= len(args)
    as_hip_reads(note, stand_in)  # every size and offset fits the segment
    assert max(a.offset + a.size for a in args) <= note.argument_bytes
