"""The step inputs of docs/package.md: what the compiler's plans name and the runtime builds."""

from __future__ import annotations

from k3compiler.package.expr import Expr
from k3compiler.package.step_record import RECORD_WORDS

INPUT_SHAPES: dict[str, tuple[str, tuple[Expr, ...]]] = {
    "decode_record": ("i32", (RECORD_WORDS,)),
    "page_start": ("i32", ("S+1",)),
    "pages": ("i32", ("PG",)),
    "tokens": ("i32", ("T",)),
    "token_seq": ("i32", ("T",)),
    "token_pos": ("i32", ("T",)),
    "seq_start": ("i32", ("S+1",)),
    "seq_ctx": ("i32", ("S",)),
    "seq_slot": ("i32", ("S",)),
    "page_table": ("i32", ("S", "P")),
    "kv_start": ("i32", ("S+1",)),
    "seq_chunk": ("i32", ("S+1",)),
    "chunk_grid": ("i32", ("S",)),
    "segment_grid": ("i32", ("S",)),
    "kept_chunk": ("i32", ("CK",)),
    "kept_slot": ("i32", ("CK",)),
    "chunk_start": ("i32", ("NC",)),
    "chunk_end": ("i32", ("NC",)),
    "chunk_seq": ("i32", ("NC",)),
    "chunk_ckpt": ("i32", ("NC",)),
    "seg_chunk": ("i32", ("NS+1",)),
    "seg_seq": ("i32", ("NS",)),
    "seq_seg": ("i32", ("S+1",)),
    "logit_rows": ("i32", ("R",)),
    "temperature": ("f32", ("R",)),
    "top_k": ("i32", ("R",)),
    "top_p": ("f32", ("R",)),
    "seed": ("i32", ("R",)),
    "step_idx": ("i32", ("R",)),
}
"""Dtype and shape of every input that a plan may name."""
