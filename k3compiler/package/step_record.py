"""The packed record from which a decode step's inputs are made on the device: where the words lie.

A decode step changes little, so the device keeps the step inputs of every batch row and the host says only what is
new. The record is i32:

    word 0          how many rows are live; the others are padding and own nothing
    word 1 + row    0   the row goes on: one token further, fed with what it chose last (``next_token[row]``)
                    -p  the same, and page p covers the position that it feeds now
                    w   (> 0) the row is set anew from word w on: the fields of ``RowField``, then its pages
"""

from __future__ import annotations

from enum import IntEnum

from k3compiler.package.expr import Expr

FIRST_ROW_WORD = 1


class RowField(IntEnum):
    """Words of a row that is set anew; floats by their bits.

    ``FIRST_PAGE``: the column of the first of the ``NUM_PAGES`` pages that follow; columns before it stay.
    """

    TOKEN = 0
    CONTEXT = 1
    SLOT = 2
    STEP = 3
    TEMPERATURE = 4
    TOP_K = 5
    TOP_P = 6
    SEED = 7
    FIRST_PAGE = 8
    NUM_PAGES = 9


NUM_FIELDS = len(RowField)
RECORD_WORDS: Expr = f"1 + T*({NUM_FIELDS + 1} + P)"
"""Room for a record that sets every row anew with all of its pages."""
