"""The cache on state buffers: sequences opened by hand, promises, operations on memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from k3compiler.runtime.cache.engine_cache import EngineCache, SequenceCache
from k3compiler.runtime.cache.ops import (
    CopyCells,
    CopyStates,
    DropHost,
    Ints,
    Move,
    Restore,
    Spill,
    ZeroPages,
)
from k3compiler.runtime.cache.state_memory import StateMemory
from k3compiler.runtime.device.base import TensorRef
from k3compiler.runtime.device.cpu import tensor_view
from k3compiler.runtime.device.null import NullDevice

PAGE = 4


class TorchDevice(NullDevice):
    """Host memory seen through torch, as a GPU's is."""

    def tensor(self, ref: TensorRef) -> Any:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        return torch.from_numpy(super().tensor(ref))


def make_memory(
    num_pages: int, num_slots: int, device: NullDevice | None = None
) -> tuple[StateMemory, dict[str, Any]]:
    """Two KDA layers and one MLA layer, every row filled with its number."""
    device = device or NullDevice()
    shapes = {
        "kda_state.0": (num_slots, 2, 3, 3),
        "kda_conv.0": (num_slots, 3, 5),
        "mla_cache.1": (num_pages, PAGE, 6),
    }
    state: dict[str, TensorRef] = {}
    for name, shape in shapes.items():
        state[name] = TensorRef(device.allocate(int(np.prod(shape)) * 4), "f32", shape)
    views = {name: tensor_view(ref) for name, ref in state.items()}
    for view in views.values():
        view[:] = np.arange(len(view)).reshape(-1, *[1] * (view.ndim - 1))
    return StateMemory(device, state), views


def make(num_pages: int, num_slots: int) -> EngineCache:
    return EngineCache(
        make_memory(num_pages, num_slots)[0],
        num_pages=num_pages,
        num_slots=num_slots,
        num_sequences=num_slots - 1,
        page_tokens=PAGE,
        unit=PAGE,
        prefix_cache=True,
    )


def test_bytes_are_those_of_all_layers() -> None:
    memory, _ = make_memory(5, 3)
    assert (memory.state_bytes, memory.token_bytes) == ((18 + 15) * 4, 24)


def test_promises_are_kept() -> None:
    cache = make(7, 4)
    first = cache.open(4 * PAGE)
    assert first is not None
    assert cache.open(3 * PAGE) is None, "three of six pages are not free: four are promised"
    second = cache.open(2 * PAGE)
    assert second is not None
    cache.grow(second, 2 * PAGE)
    cache.grow(first, 4 * PAGE)
    cache.check_integrity()
    assert not set(first.pages) & set(second.pages)
    assert 0 not in first.pages + second.pages and 0 not in (first.slot, second.slot)
    assert cache.can_ever_open(6 * PAGE) and not cache.can_ever_open(7 * PAGE)
    with pytest.raises(AssertionError, match="promised"):
        cache.grow(second, 3 * PAGE)


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


@pytest.mark.parametrize("device", [NullDevice, TorchDevice])
def test_operations_reach_every_layer(device: type[NullDevice]) -> None:
    """Places are rows less one; row 0 is nobody's and stays."""
    memory, views = make_memory(6, 5, device())
    nothing = ints()
    memory.run([CopyStates(ints(0, 1), ints(2, 3)), ZeroPages(ints(4)), CopyCells(1, 4, 3)])
    for name in ("kda_state.0", "kda_conv.0"):
        assert [view.flat[0] for view in views[name]] == [0, 1, 2, 1, 2]
    page = views["mla_cache.1"]
    assert page[5, :, 0].tolist() == [2, 2, 2, 0]
    memory.run(
        [Spill("state", 7, ints(1), nothing), Spill("page", 8, ints(1, 1, 2), ints(2, 3, 0))]
    )
    memory.run([Move("state", ints(0), ints(1)), Move("page", ints(0), ints(1))])
    assert views["kda_conv.0"][2, 0, 0] == 1 and page[2, 0, 0] == 1
    memory.run([Restore("state", 7, ints(3), nothing)])
    memory.run([Restore("page", 8, ints(4, 4, 0), ints(0, 1, 3)), DropHost(7), DropHost(8)])
    assert views["kda_state.0"][4, 0, 0, 0] == 2
    assert page[5, :, 0].tolist() == [2, 2, 2, 0] and page[1, 3, 0] == 3
    assert not page[0].any() and not memory._host


class CacheMachine(RuleBasedStateMachine):
    """Sequences open, grow and close in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = make(12, 4)
        self.open: list[SequenceCache] = []

    @rule(tokens=st.integers(1, 50))
    def begin(self, tokens: int) -> None:
        sequence = self.cache.open(tokens)
        if sequence is not None:
            self.open.append(sequence)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.open))
        most = sequence.max_pages * PAGE
        tokens = data.draw(st.integers(sequence.context_tokens, most))
        self.cache.grow(sequence, tokens)
        sequence.context_tokens = tokens

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.open))
        self.open.remove(sequence)
        self.cache.close(sequence)

    @invariant()
    def is_consistent(self) -> None:
        self.cache.check_integrity()
        held = [page for sequence in self.open for page in sequence.pages]
        assert len(held) == len(set(held)) and all(0 < page < 12 for page in held)
        assert self.cache.slots.num_free == 3 - len(self.open)


TestCache = CacheMachine.TestCase
