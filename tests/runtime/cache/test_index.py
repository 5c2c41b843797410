"""Keys and the prefix index: what is one prefix, and what never is."""

from __future__ import annotations

import numpy as np
import pytest

from k3compiler.runtime.cache.index import PrefixIndex
from k3compiler.runtime.cache.unit_keys import Media, Tokens, UnitKeys, unit_digests

UNIT = 4


def tokens(*values: int) -> Tokens:
    return np.array(values, np.int32)


def keys(values: Tokens, salt: str | None = None, media: tuple[Media, ...] = ()) -> UnitKeys:
    return UnitKeys.of(values, UNIT, (salt, None), media)


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex(UNIT, UNIT)


def store(index: PrefixIndex, what: UnitKeys) -> np.ndarray:
    path = index.extend(np.zeros(0, np.int64), what, len(what))
    index.on_device[path] = True
    return path


def test_a_path_is_found_as_far_as_units_agree(index: PrefixIndex) -> None:
    base = np.arange(20, dtype=np.int32)
    path = store(index, keys(base))
    assert len(path) == 5
    other = base.copy()
    other[13] = 99
    for limit in (0, 2, 5):
        assert len(index.find(keys(other), limit).nodes) == min(limit, 3)
    assert index.find(keys(base[:11]), 2).nodes.tolist() == path[:2].tolist()


def test_equal_units_below_different_parents_are_different(index: PrefixIndex) -> None:
    one = store(index, keys(tokens(1, 1, 1, 1, 5, 5, 5, 5)))
    two = store(index, keys(tokens(2, 2, 2, 2, 5, 5, 5, 5)))
    assert not set(one) & set(two)
    assert len(index.find(keys(tokens(3, 3, 3, 3, 5, 5, 5, 5)), 2).nodes) == 0


def test_equal_digests_are_told_apart_by_their_tokens(
    index: PrefixIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where every digest collides, nothing wrong is found."""
    monkeypatch.setattr(
        "k3compiler.runtime.cache.unit_keys.unit_digests",
        lambda units: np.zeros(len(units), np.uint64),
    )
    first, second = keys(tokens(1, 2, 3, 4, 5, 6, 7, 8)), keys(tokens(1, 2, 3, 9, 5, 6, 7, 8))
    path = store(index, first)
    assert len(index.find(second, 2).nodes) == 0
    assert index.find(first, 2).nodes.tolist() == path.tolist()
    assert len(store(index, second)) == 0, "a unit whose key is taken is not stored"


def test_salts_share_nothing(index: PrefixIndex) -> None:
    base = np.arange(8, dtype=np.int32)
    store(index, keys(base, "a"))
    assert len(index.find(keys(base, "b"), 2).nodes) == 0
    assert len(index.find(keys(base), 2).nodes) == 0
    assert len(index.find(keys(base, "a"), 2).nodes) == 2


@pytest.mark.parametrize(
    ("media", "depth"),
    [
        ((Media("m", 5, 9),), 3),
        ((Media("n", 5, 9),), 1),
        ((Media("m", 6, 9),), 1),
        ((Media("m", 5, 10),), 2),
        ((), 1),
        ((Media("m", 5, 9), Media("k", 12, 14)), 3),
    ],
)
def test_media_are_part_of_the_units_they_overlap(
    index: PrefixIndex, media: tuple[Media, ...], depth: int
) -> None:
    base = np.zeros(12, np.int32)
    store(index, keys(base, media=(Media("m", 5, 9),)))
    assert len(index.find(keys(base, media=media), 3).nodes) == depth


def test_pages_of_a_path_when_pages_are_larger_than_units() -> None:
    index = PrefixIndex(4, 10)
    path = store(index, keys(np.arange(20, dtype=np.int32)))
    assert index.page_indices(index.depth[path]).tolist() == [
        [0, -1],
        [0, -1],
        [0, 1],
        [1, -1],
        [1, -1],
    ]
    index.pages[path] = [[7, 0], [7, 0], [8, 9], [9, 0], [11, 0]]
    assert index.path_pages(path).tolist() == [8, 11]
    assert index.path_pages(path[:2]).tolist() == [7]


def test_pages_of_a_path_when_pages_are_smaller_than_units() -> None:
    index = PrefixIndex(6, 2)
    path = store(index, keys6 := UnitKeys.of(np.arange(12, dtype=np.int32), 6))
    assert len(keys6) == 2
    index.pages[path] = [[1, 2, 3], [4, 5, 6]]
    assert index.path_pages(path).tolist() == [1, 2, 3, 4, 5, 6]


def test_digests_depend_on_every_token_and_its_place() -> None:
    rows = np.tile(np.arange(64, dtype=np.int32), (65, 1))
    for row in range(64):
        rows[row, row] += 1
    assert len(set(unit_digests(rows).tolist())) == 65
    assert unit_digests(rows[:1, ::-1])[0] != unit_digests(rows[64:, ::-1])[0]
    swapped = rows[64:].copy()
    swapped[0, [0, 1]] = swapped[0, [1, 0]]
    assert unit_digests(swapped)[0] != unit_digests(rows[64:])[0]


def test_removed_nodes_are_forgotten_and_their_ids_used_again(index: PrefixIndex) -> None:
    base = np.arange(8, dtype=np.int32)
    path = store(index, keys(base))
    index.on_device[path] = False
    index.remove(int(path[1]))
    assert len(index.find(keys(base), 2).nodes) == 1
    with pytest.raises(AssertionError, match="needed"):
        store(index, keys(base))
        index.on_device[path[0]] = False
        index.remove(int(path[0]))
