"""What the machine can do at best, measured in the run that needs it: copy bandwidth and matrix rate."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import k3compiler
from k3compiler.runtime.device.base import Device


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes read plus written per second of a large copy; flop/s of a large matrix product."""

    bytes_per_s: float
    flops: float


def measure_rates(device: Device) -> Rates:
    """The two ceilings of a device (bf16 products on a GPU, f32 on one CPU thread)."""
    return _cuda_rates(device) if device.name.startswith("cuda") else _host_rates()


def _host_rates() -> Rates:
    source = np.random.default_rng(0).standard_normal(1 << 24).astype(np.float32)
    target, a = np.empty_like(source), source[: 1 << 20].reshape(1024, 1024)
    copied = _median_seconds(lambda: np.copyto(target, source))
    product = _median_seconds(lambda: a @ a)
    return Rates(2 * source.nbytes / copied, 2 * 1024**3 / product)


def _cuda_rates(device: Any) -> Rates:
    torch = device.torch
    source = torch.randn(1 << 29, device=device.name, dtype=torch.bfloat16)
    target, a = torch.empty_like(source), source[: 1 << 26].view(8192, 8192)

    def timed(run: Callable[[], Any]) -> float:
        def whole() -> None:
            run()
            torch.cuda.synchronize()

        return _median_seconds(whole)

    copied = timed(lambda: target.copy_(source))
    product = timed(lambda: torch.matmul(a, a, out=target[: 1 << 26].view(8192, 8192)))
    return Rates(2 * source.numel() * 2 / copied, 2 * 8192**3 / product)


def _median_seconds(run: Callable[[], Any], repeats: int = 9) -> float:
    samples: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return median(samples[2:])


def describe_device(device: Device) -> dict[str, str]:
    """Chip and versions, for the record of a measurement."""
    facts = {
        "k3compiler": k3compiler.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    if device.name.startswith("cuda"):
        torch = getattr(device, "torch")  # noqa: B009
        return facts | {
            "chip": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
        }
    return facts | {"chip": _cpu_name()}


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
