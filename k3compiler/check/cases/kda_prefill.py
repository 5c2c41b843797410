"""Cases of the five KDA prefill launches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from k3compiler.check.case import MEMORY, TOLERANCE, Array, Case, Params, poisoned
from k3compiler.check.cases.kda_decode import (
    gate_logits,
    gate_of,
    heads_of,
    projections,
    raw_branches,
)
from k3compiler.check.cases.kda_tables import (
    RaggedStep,
    ragged_step,
    random_decay,
    slot_memory,
    unit_keys,
)
from k3compiler.reference.kda import short_conv
from k3compiler.reference.kda_chunk import (
    PreparedChunks,
    SegmentMaps,
)
from k3compiler.reference.kda_chunk import (
    kda_output as output_of,
)
from k3compiler.reference.kda_chunk import (
    kda_prepare as prepare_of,
)
from k3compiler.reference.kda_chunk import (
    kda_scan as scan_of,
)
from k3compiler.reference.kda_chunk import (
    kda_segment_maps as maps_of,
)
from k3compiler.reference.norms import gated_rms_norm


def _rounded(values: Array, dtype: str) -> Array:
    return values.astype(np.float32).astype(MEMORY[dtype])


def _wide(arrays: dict[str, Array], *names: str) -> list[Array]:
    return [arrays[name].astype(np.float64) for name in names]


def _histories(step: RaggedStep, conv: Array) -> list[Array | None]:
    """The inputs before the step of every sequence, None where it starts fresh."""
    pairs = zip(step.tables["seq_ctx"], step.tables["seq_slot"], strict=True)
    return [conv[slot].astype(np.float64) if context else None for context, slot in pairs]


def _cumulative(g: Array, step: RaggedStep) -> Array:
    """The log-decays summed from every chunk's first row on."""
    total = np.empty_like(g)
    for a, b in zip(step.tables["chunk_start"], step.tables["chunk_end"], strict=True):
        total[a:b] = np.cumsum(g[a:b], axis=0)
    return total


def kda_inputs(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    step, dtype, heads = ragged_step(rng, sizes), params["dtype"], params["heads"]
    tokens = int(step.starts[-1])
    made = projections(rng, params, tokens)
    conv = slot_memory(rng, step, (params["conv_size"] - 1, len(made["conv_w"])), dtype)
    raw, taps = raw_branches(params, made["x"]), made["conv_w"].astype(np.float64)
    mixed = np.concatenate(
        [
            short_conv(raw[a:b], taps, past)[0]
            for (a, b), past in zip(pairwise(step.starts), _histories(step, conv), strict=True)
        ]
    )
    q, k, v = heads_of(params, mixed)
    g, beta = gate_of(params, made)
    expected = {"q": q, "k": k, "v": v, "g": _cumulative(g, step), "beta": beta}
    arguments = {
        **made,
        "kda_conv": conv,
        **step.pick("seq_start", "seq_ctx", "seq_slot", "chunk_start", "chunk_end", "chunk_seq"),
        **{name: poisoned(expected[name].shape, dtype) for name in ("q", "k", "v")},
        "g": poisoned((tokens, heads, params["k_dim"]), "f32"),
        "beta": poisoned((tokens, heads), "f32"),
    }
    return Case(arguments, expected, TOLERANCE[dtype])


def kda_conv_state(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    step, kept, first = ragged_step(rng, sizes), params["conv_size"] - 1, params["qkv_offset"]
    tokens = int(step.starts[-1])
    x = rng.standard_normal((tokens, params["in_cols"])).astype(MEMORY[params["dtype"]])
    conv = slot_memory(rng, step, (kept, params["channels"]), params["dtype"])
    raw = x[:, first : first + params["channels"]].astype(np.float64)
    want, tables = conv.astype(np.float64), step.tables
    for s, past in enumerate(_histories(step, conv)):
        before = np.zeros((kept, params["channels"])) if past is None else past
        window = np.concatenate([before, raw[step.starts[s] : step.starts[s + 1]]])
        want[tables["seq_slot"][s]] = window[-kept:]
        for n in np.flatnonzero((tables["chunk_seq"] == s) & (tables["chunk_ckpt"] >= 0)):
            end = tables["chunk_end"][n] - step.starts[s]
            want[tables["chunk_ckpt"][n]] = window[end : end + kept]
    names = ("seq_start", "seq_ctx", "seq_slot", "seq_seg", "seg_chunk", "chunk_ckpt", "chunk_end")
    return Case({"x": x, "kda_conv": conv, **step.pick(*names)}, {"kda_conv": want}, 1e-7)


def _head_inputs(params: Params, rng: np.random.Generator, step: RaggedStep) -> dict[str, Array]:
    """q, k, v, cumulative g and beta as kda_inputs leaves them; keys agree more or less by head."""
    tokens, heads, k_dim = int(step.starts[-1]), params["heads"], params["k_dim"]
    cosine = params.get("key_cosine", 0.4)
    q = unit_keys(rng, (tokens, heads, k_dim), cosine) * k_dim**-0.5
    k = unit_keys(rng, (tokens, heads, k_dim), cosine)
    v = rng.standard_normal((tokens, heads, params["v_dim"]))
    g = random_decay(rng, tokens, heads, k_dim, params["lower_bound"]).astype(np.float64)
    made = {name: _rounded(a, params["dtype"]) for name, a in (("q", q), ("k", k), ("v", v))}
    made["g"] = _cumulative(g, step).astype(np.float32)
    made["beta"] = rng.uniform(0.05, 1.0, (tokens, heads)).astype(np.float32)
    return made


def _prepared(made: dict[str, Array], step: RaggedStep) -> PreparedChunks:
    """The reference on these inputs; log-decays are differences of the cumulative ones."""
    q, k, v, total, beta = _wide(made, "q", "k", "v", "g", "beta")
    g = np.empty_like(total)
    for a, b in zip(step.tables["chunk_start"], step.tables["chunk_end"], strict=True):
        g[a:b] = np.diff(total[a:b], axis=0, prepend=0.0)
    return prepare_of(q, k, v, g, beta, step.tables["chunk_start"], step.tables["chunk_end"])


def _stored(prepared: PreparedChunks) -> dict[str, Array]:
    """As kda_prepare stores it: w negated, u transposed."""
    made = prepared._asdict()
    return {**made, "w": -made["w"], "u": made["u"].swapaxes(2, 3)}


def kda_prepare(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    step, dtype = ragged_step(rng, sizes), params["dtype"]
    made = _head_inputs(params, rng, step)
    expected = _stored(_prepared(made, step))
    outputs = {
        name: poisoned(want.shape, "f32" if name == "gamma" else dtype)
        for name, want in expected.items()
    }
    arguments = {**made, **step.pick("chunk_start", "chunk_end"), **outputs}
    return Case(arguments, expected, TOLERANCE[dtype])


def _workspaces(
    params: Params, rng: np.random.Generator, step: RaggedStep
) -> tuple[dict[str, Array], PreparedChunks]:
    """kda_prepare's results in memory, and the same numbers in float64."""
    with_gate = {"lower_bound": -5.0, **params}
    stored = _stored(_prepared(_head_inputs(with_gate, rng, step), step))
    memory = {
        name: _rounded(a, "f32" if name == "gamma" else params["dtype"])
        for name, a in stored.items()
    }
    wide = {name: a.astype(np.float64) for name, a in memory.items()}
    return memory, PreparedChunks(**{**wide, "w": -wide["w"], "u": wide["u"].swapaxes(2, 3)})


def _initial(step: RaggedStep, state: Array) -> Array:
    """The state ``[S, H, Dv, Dk]`` that each sequence starts the step with, float64."""
    fresh = (step.tables["seq_ctx"] == 0)[:, None, None, None]
    return np.where(fresh, 0.0, state[step.tables["seq_slot"]].astype(np.float64))


def _state_shape(params: Params) -> tuple[int, int, int]:
    return params["heads"], params["v_dim"], params["k_dim"]


def _chunk_maps(prepared: PreparedChunks, step: RaggedStep) -> SegmentMaps:
    return maps_of(prepared, step.tables["seg_chunk"])


def _position(step: RaggedStep) -> tuple[Array, Array]:
    """Whether each segment is its sequence's first, and its last."""
    segments = np.arange(len(step.tables["seg_seq"]))
    bounds = step.tables["seq_seg"]
    return np.isin(segments, bounds[:-1]), np.isin(segments + 1, bounds[1:])


def _rows(mask: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(mask.reshape(-1, *[1] * (len(shape) - 1)), shape)


def kda_segment_maps(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    step, dtype = ragged_step(rng, sizes), params["dtype"]
    memory, prepared = _workspaces(params, rng, step)
    state = slot_memory(rng, step, _state_shape(params), "f32")
    maps = _chunk_maps(prepared, step)
    is_first, is_last = _position(step)
    start = np.where(
        _rows(is_first, maps.b.shape), _initial(step, state)[step.tables["seg_seq"]], 0.0
    )
    b = start * maps.gamma[:, :, None] + start @ maps.r + maps.b
    expected = {"b": b, "r": maps.r, "gamma_seg": maps.gamma}
    where = {
        name: _rows(~is_last & ~(is_first & (name != "b")), expected[name].shape)
        for name in expected
    }
    names = ("seq_ctx", "seq_slot", "seq_seg", "seg_chunk", "seg_seq")
    arguments = {
        **{name: memory[name] for name in ("w", "u", "k_tail", "gamma")},
        "kda_state": state,
        **step.pick(*names),
        "b": poisoned(b.shape, "f32"),
        "r": poisoned(maps.r.shape, dtype),
        "gamma_seg": poisoned(maps.gamma.shape, "f32"),
    }
    return Case(arguments, expected, TOLERANCE[dtype], where, frozenset(expected))


def kda_scan(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """What segment maps leave unwritten is NaN here."""
    if not params["segmented"]:
        sizes = {**sizes, "L": 1 << 20}
    step, dtype = ragged_step(rng, sizes), params["dtype"]
    state = slot_memory(rng, step, _state_shape(params), "f32")
    initial = _initial(step, state)
    made: dict[str, Array] = {}
    starts = initial[step.tables["seg_seq"]]
    if params["segmented"]:
        _, prepared = _workspaces(params, rng, step)
        maps = _chunk_maps(prepared, step)
        is_first, is_last = _position(step)
        made = {
            "b": maps.b.astype(np.float32),
            "r": _rounded(maps.r, dtype),
            "gamma_seg": maps.gamma.astype(np.float32),
        }
        b, r, gamma = _wide(made, "b", "r", "gamma_seg")
        whole = np.where(_rows(is_first, gamma.shape), 0.0, gamma)
        linear = np.where(_rows(is_first, r.shape), 0.0, r)
        starts, _ = scan_of(SegmentMaps(whole, linear, b), initial, step.tables["seq_seg"])
        for name in made:
            made[name][is_last] = np.nan
            if name != "b":
                made[name][is_first] = np.nan
    arguments = {
        "kda_state": state,
        **made,
        **step.pick("seq_ctx", "seq_slot", "seq_seg"),
        "seg_state": poisoned(starts.shape, "f32"),
    }
    return Case(arguments, {"seg_state": starts}, TOLERANCE[dtype])


def kda_output(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    step, dtype = ragged_step(rng, sizes), params["dtype"]
    tokens, heads, v_dim = int(step.starts[-1]), params["heads"], params["v_dim"]
    memory, prepared = _workspaces(params, rng, step)
    seg_state = 0.5 * rng.standard_normal((len(step.tables["seg_seq"]), *_state_shape(params)))
    seg_state = seg_state.astype(np.float32)
    gate_name = "gate" if params["gate_offset"] is None else "x"
    columns = heads * v_dim if params["gate_offset"] is None else params["in_cols"]
    made = {
        gate_name: rng.standard_normal((tokens, columns)).astype(MEMORY[dtype]),
        "norm_w": (1 + 0.3 * rng.standard_normal(v_dim)).astype(np.float32),
    }
    tables = step.tables
    raw, after = output_of(
        prepared,
        seg_state.astype(np.float64),
        tables["seg_chunk"],
        tables["chunk_start"],
        tables["chunk_end"],
        tokens,
    )
    out = gated_rms_norm(
        raw, made["norm_w"].astype(np.float64), gate_logits(params, made), params["eps"]
    )
    state = poisoned((step.slots, *_state_shape(params)), "f32")
    want = state.astype(np.float64)
    kept = tables["chunk_ckpt"] >= 0
    want[tables["chunk_ckpt"][kept]] = after[kept]
    want[tables["seq_slot"]] = after[tables["seg_chunk"][tables["seq_seg"][1:]] - 1]
    names = (
        "chunk_start",
        "chunk_end",
        "chunk_ckpt",
        "seq_slot",
        "seq_seg",
        "seg_chunk",
        "seg_seq",
    )
    arguments = {
        **memory,
        "seg_state": seg_state,
        **made,
        **step.pick(*names),
        "kda_state": state,
        "o": poisoned((tokens, heads * v_dim), dtype),
    }
    return Case(arguments, {"o": out.reshape(tokens, -1), "kda_state": want}, TOLERANCE[dtype])
