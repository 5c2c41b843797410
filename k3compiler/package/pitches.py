"""How far apart the items of a cache lie in memory: where compiler and runtime meet.

One arena holds all layers: a slot is the states of every KDA layer, a page the cells of every MLA
layer. A kernel gets the pointer to its layer's part of item 0 and, as a symbol, the pitch: how many
rows of that part fit between one item and the next. Dense buffers have the layer's own rows.

    kda_state.<l>   [SLOTS, SLOT_HEADS, V, K]         the first H of SLOT_HEADS are this layer's
    kda_conv.<l>    [SLOTS, SLOT_TAPS, channels]      the first 3
    mla_cache.<l>   [PAGES, PAGE_ROWS, latent+rope]   the first page_tokens
"""

from __future__ import annotations

from k3compiler.package.manifest import Manifest

PITCHES: dict[str, str] = {
    "kda_state": "SLOT_HEADS",
    "kda_conv": "SLOT_TAPS",
    "mla_cache": "PAGE_ROWS",
}
"""Kind of state -> the symbol that a kernel of ours has as its second extent."""


def pitch_of(state: str) -> str:
    """The pitch symbol of a state buffer, by its name (``kda_state.3``)."""
    return PITCHES[state.partition(".")[0]]


def dense_pitches(manifest: Manifest) -> dict[str, int]:
    """The pitches of buffers that hold one layer each."""
    kda = manifest.config.kda
    return {
        "SLOT_HEADS": kda.num_heads // manifest.parallel.tp,
        "SLOT_TAPS": kda.conv_size - 1,
        "PAGE_ROWS": manifest.page_tokens,
    }
