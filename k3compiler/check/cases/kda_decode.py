"""Cases of the KDA decode step."""

from __future__ import annotations

import numpy as np

from k3compiler.check.case import MEMORY, TOLERANCE, Array, Case, Params, poisoned
from k3compiler.reference.activations import sigmoid, silu
from k3compiler.reference.kda import kda_gate, kda_recurrence, short_conv
from k3compiler.reference.norms import gated_rms_norm, l2_normalize


def gate_parameters(rng: np.random.Generator, heads: int, k_dim: int) -> dict[str, Array]:
    """a_log and dt_bias whose even heads decay at any rate and whose odd heads decay slowly."""
    bias = rng.standard_normal((heads, k_dim)) - 7.0 * (np.arange(heads)[:, None] % 2)
    a_log = 0.5 * rng.standard_normal(heads)
    return {"a_log": a_log.astype(np.float32), "dt_bias": bias.reshape(-1).astype(np.float32)}


def projections(rng: np.random.Generator, params: Params, tokens: int) -> dict[str, Array]:
    """Fused rows, gate logits f, output gate logits (where separate), and conv weights."""
    kind, heads = MEMORY[params["dtype"]], params["heads"]
    keys, values = heads * params["k_dim"], heads * params["v_dim"]
    made = {
        "x": rng.standard_normal((tokens, params["in_cols"])).astype(kind),
        **_decay_inputs(rng, params, tokens),
        "conv_w": (0.5 * rng.standard_normal((2 * keys + values, params["conv_size"]))).astype(
            "f4"
        ),
        **gate_parameters(rng, heads, params["k_dim"]),
    }
    if params.get("gate_offset", 0) is None:
        made["gate"] = rng.standard_normal((tokens, values)).astype(kind)
    return made


def _decay_inputs(rng: np.random.Generator, params: Params, tokens: int) -> dict[str, Array]:
    """Decay logits, or the rows and the weight that make them."""
    kind, keys, rank = (
        MEMORY[params["dtype"]],
        params["heads"] * params["k_dim"],
        params.get("rank"),
    )
    if rank is None:
        return {"f": (2.5 * rng.standard_normal((tokens, keys))).astype(kind)}
    return {
        "low": rng.standard_normal((tokens, params["low_cols"])).astype(kind),
        "f_w": (2.5 * rank**-0.5 * rng.standard_normal((keys, rank))).astype(kind),
    }


def _decay_logits(params: Params, made: dict[str, Array]) -> Array:
    if "f" in made:
        return made["f"].astype(np.float64)
    first = params["low_offset"]
    low = made["low"][:, first : first + params["rank"]].astype(np.float64)
    return low @ made["f_w"].astype(np.float64).T


def raw_branches(params: Params, x: Array) -> Array:
    """Columns q, k, v of the fused rows side by side, float64 ``[T, 2*H*Dk + H*Dv]``."""
    keys, values = params["heads"] * params["k_dim"], params["heads"] * params["v_dim"]
    spans = ((params["q_offset"], keys), (params["k_offset"], keys), (params["v_offset"], values))
    return np.concatenate([x[:, at : at + n].astype(np.float64) for at, n in spans], axis=1)


def heads_of(params: Params, mixed: Array) -> tuple[Array, Array, Array]:
    """Convolved channels to ``q, k [T, H, Dk]`` (normalised, q scaled) and ``v [T, H, Dv]``."""
    heads, k_dim = params["heads"], params["k_dim"]
    keys = heads * k_dim
    q, k, v = np.split(silu(mixed), [keys, 2 * keys], axis=1)
    q, k = (l2_normalize(part.reshape(len(mixed), heads, k_dim)) for part in (q, k))
    return q * k_dim**-0.5, k, v.reshape(len(mixed), heads, params["v_dim"])


def gate_of(params: Params, made: dict[str, Array]) -> tuple[Array, Array]:
    """``g [T, H, Dk]`` and ``beta [T, H]`` in float64."""
    heads, first = params["heads"], params["beta_offset"]
    f = _decay_logits(params, made).reshape(-1, heads, params["k_dim"])
    g = kda_gate(
        f,
        made["a_log"].astype(np.float64),
        made["dt_bias"].astype(np.float64),
        params["lower_bound"],
    )
    return g, sigmoid(made["x"][:, first : first + heads].astype(np.float64))


def gate_logits(params: Params, made: dict[str, Array]) -> Array:
    """Output gate logits ``[T, H, Dv]`` in float64."""
    first, width = params["gate_offset"], params["heads"] * params["v_dim"]
    rows = made["gate"] if first is None else made["x"][:, first : first + width]
    return rows.astype(np.float64).reshape(-1, params["heads"], params["v_dim"])


def kda_decode(params: Params, rng: np.random.Generator, sizes: dict[str, int]) -> Case:
    """One token of S sequences; every third starts fresh (its slot holds NaN), the last row is padding."""
    count, heads, dtype = sizes.get("S", 4), params["heads"], params["dtype"]
    made = projections(rng, params, count)
    made["norm_w"] = (1 + 0.3 * rng.standard_normal(params["v_dim"])).astype(np.float32)
    slots = count + 2
    context = np.where(np.arange(count) % 3 == 1, 0, 5).astype(np.int32)
    slot = (1 + rng.permutation(slots - 1)[:count]).astype(np.int32)
    context[-1], slot[-1] = 0, 0
    channels = made["conv_w"].shape[0]
    conv = np.full((slots, params["conv_size"] - 1, channels), np.nan, MEMORY[dtype])
    state = np.full((slots, heads, params["v_dim"], params["k_dim"]), np.nan, np.float32)
    old = slot[context > 0]
    conv[old] = rng.standard_normal(conv[old].shape).astype(conv.dtype)
    state[old] = 0.5 * rng.standard_normal(state[old].shape)
    arguments = {
        **made,
        "seq_ctx": context,
        "seq_slot": slot,
        "kda_conv": conv,
        "kda_state": state,
        "o": poisoned((count, heads * params["v_dim"]), dtype),
    }
    caches = {"kda_conv": conv.astype(np.float64), "kda_state": state.astype(np.float64)}
    expected = _expect(params, made, np.where(context > 0, slot, -slot), caches)
    owned = np.arange(slots) != 0
    where = {
        name: np.broadcast_to(
            owned.reshape(-1, *[1] * (expected[name].ndim - 1)), expected[name].shape
        )
        for name in ("kda_conv", "kda_state")
    }
    return Case(arguments, expected, TOLERANCE[dtype], where)


def _expect(
    params: Params, made: dict[str, Array], slots: Array, caches: dict[str, Array]
) -> dict[str, Array]:
    """Row i steps slot ``abs(slots[i])`` of the caches, from zero where that is not positive."""
    raw, (g, beta) = raw_branches(params, made["x"]), gate_of(params, made)
    conv, state = caches["kda_conv"], caches["kda_state"]
    taps, rows = made["conv_w"].astype(np.float64), []
    for i, s in enumerate(np.abs(slots)):
        past, before = (conv[s], state[s]) if slots[i] > 0 else (None, None)
        mixed, conv[s] = short_conv(raw[i : i + 1], taps, past)
        q, k, v = heads_of(params, mixed)
        o, state[s] = kda_recurrence(q, k, v, g[i : i + 1], beta[i : i + 1], before)
        rows.append(o[0])
    out = gated_rms_norm(
        np.stack(rows), made["norm_w"].astype(np.float64), gate_logits(params, made), params["eps"]
    )
    return {"o": out.reshape(len(raw), -1), **caches}
