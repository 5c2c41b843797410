"""A pool of numbered blocks (MLA pages, or KDA slots) with reference counts.

id 0        the trash block: padding rows read and write it, nobody owns it
free list   ids with count 0, each exactly once
held        count = number of holders; a block with more than one is never written
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

TRASH = 0


class BlockPool:
    """Hands out block ids ``1 .. num_blocks - 1``, most recently freed first.

    Ownership: whoever received an id from :meth:`allocate` or :meth:`share` gives it back once
    with :meth:`release`.
    """

    def __init__(self, num_blocks: int, *, name: str) -> None:
        assert num_blocks >= 2, f"{name}: one trash block and at least one more"
        self.num_blocks, self.name = num_blocks, name
        self._free = list(range(num_blocks - 1, TRASH, -1))
        self._holders = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_usable(self) -> int:
        """Blocks there are besides the trash block."""
        return self.num_blocks - 1

    def allocate(self, count: int) -> list[int] | None:
        """``count`` blocks with one holder each, or None where there are too few; never some."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            assert self._holders[block] == 0, f"{self.name} {block} was free and held"
            self._holders[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to each block (a prefix hit)."""
        for block in blocks:
            assert self._holders[block] > 0, f"{self.name} {block} is not held"
            self._holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Take one holder off each block; those without any are free again."""
        for block in blocks:
            assert self._holders[block] > 0, f"{self.name} {block} is released twice"
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free.append(block)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Assert that the counts are exactly ``held`` and that every other block is free once."""
        counts = Counter(held)
        assert counts[TRASH] == 0, f"{self.name}: somebody holds the trash block"
        found = {block: n for block, n in enumerate(self._holders) if n}
        assert found == dict(counts), f"{self.name}: holders {found}, tables say {dict(counts)}"
        free = set(self._free)
        assert len(free) == len(self._free), f"{self.name}: a block is free twice"
        assert not free & set(found), f"{self.name}: free and held {sorted(free & set(found))}"
        total = len(free) + len(found)
        assert total == self.num_usable, f"{self.name}: {total} blocks of {self.num_usable}"
