"""Registers, spills and matrix instructions of AMD assembly."""

from __future__ import annotations

import re
from collections import Counter

from k3compiler.package.manifest import ResourceRecord

MATRIX_OP = re.compile(r"\bv_s?mfma(?:c)?_(scale_)?")


def resources_of(assembly: str) -> ResourceRecord:
    """From the assembly and its metadata note."""

    def noted(key: str) -> int:
        found = re.search(rf"\.{key}:\s*(\d+)", assembly)
        assert found, f"the code object does not note .{key}"
        return int(found[1])

    ops = Counter("mfma_scale" if scaled else "mfma" for scaled in MATRIX_OP.findall(assembly))
    return ResourceRecord(
        registers=noted("vgpr_count"),
        spill_bytes=4 * noted("vgpr_spill_count"),
        instructions=dict(sorted(ops.items())),
    )
