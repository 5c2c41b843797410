"""Parameters and caches of random values, made on the device that will hold them.

Activations must stay finite over a hundred layers: norms scale by about 1, everything else is small,
the scale bytes of MXFP4 are small powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from k3compiler.package.manifest import ParamRecord
from k3compiler.runtime.device.base import Array, Device, TensorRef

Kind = Literal["small", "norm", "bytes", "scales"]

SPREAD = 0.02
SCALE_BYTES = (117, 122)  # 2^-10 .. 2^-6
_BLOCK = 1 << 20


def kind_of(param: ParamRecord) -> Kind:
    """What a parameter's values are like, from its dtype and name."""
    if param.dtype == "i8":
        return "scales" if param.name.endswith("weight_scale") else "bytes"
    return "norm" if param.name.endswith("norm") else "small"


@dataclass(frozen=True, slots=True)
class RandomFill:
    """Fills arrays on a device, one after another from one seed; numpy on the host, torch's generator on a GPU."""

    device: Device
    host: np.random.Generator
    torch: Any = None
    generator: Any = None

    @classmethod
    def of(cls, device: Device, seed: int) -> RandomFill:
        torch = getattr(device, "torch", None)
        generator = None
        if torch is not None:
            generator = torch.Generator(device=device.tensor(_probe(device)).device)
            generator.manual_seed(seed)
        return cls(device, np.random.default_rng(seed), torch, generator)

    def fill(self, ref: TensorRef, kind: Kind) -> None:
        """New values for all of ``ref``."""
        if self.torch is None:
            self.device.write(ref, lambda out: self._fill_host(out, kind))
        else:
            self._fill_torch(self.device.tensor(ref).view(-1), kind)

    def _fill_host(self, out: Array, kind: Kind) -> None:
        """One random block, again and again."""
        flat = out.reshape(-1)
        size = min(len(flat), _BLOCK)
        match kind:
            case "bytes":
                block = self.host.integers(0, 256, size).astype(out.dtype)
            case "scales":
                block = self.host.integers(*SCALE_BYTES, size).astype(out.dtype)
            case _:
                center = 1.0 if kind == "norm" else 0.0
                block = self.host.normal(center, SPREAD, size).astype(out.dtype)
        for start in range(0, len(flat), _BLOCK):
            part = flat[start : start + _BLOCK]
            part[:] = block[: len(part)]

    def _fill_torch(self, flat: Any, kind: Kind) -> None:
        match kind:
            case "bytes" if flat.numel() % 4 == 0:
                words = flat.view(self.torch.int32)
                words.random_(-(1 << 31), (1 << 31) - 1, generator=self.generator)
            case "bytes":
                flat.random_(0, 256, generator=self.generator)
            case "scales":
                flat.random_(*SCALE_BYTES, generator=self.generator)
            case _:
                center = 1.0 if kind == "norm" else 0.0
                flat.normal_(center, SPREAD, generator=self.generator)


def _probe(device: Device) -> TensorRef:
    return TensorRef(device.allocate(1), "i8", (1,))
