"""The KDA mixer, token by token (spec 3.2 to 3.4). The state is kept ``[H, V, K]``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.reference.activations import sigmoid, softplus

Array = NDArray[Any]


def short_conv(u: Array, w: Array, state: Array | None) -> tuple[Array, Array]:
    """Depthwise causal convolution, **before** its SiLU; the last tap is the current token.

    Shapes: ``u [T, C]``, ``w [C, 1, W]`` (or ``[C, W]``), ``state [W-1, C]`` the inputs before
    this call, oldest first (None: zeros) -> ``y [T, C]``, new state ``[W-1, C]``.
    Source: spec 3.2.
    """
    taps = w.reshape(w.shape[0], -1)
    past = taps.shape[1] - 1
    if state is None:
        state = np.zeros((past, u.shape[1]), u.dtype)
    window = np.concatenate([state, u])
    y = sum(taps[:, j] * window[j : j + len(u)] for j in range(past + 1))
    return np.asarray(y), window[len(u) :]


def kda_gate(f: Array, a_log: Array, dt_bias: Array, lower_bound: float | None) -> Array:
    """Log-decay g < 0 per head and key channel (spec 3.3).

    Shapes: ``f [T, H, K]``, ``a_log`` any shape of at least H elements (the first H count),
    ``dt_bias [H*K]`` -> ``g [T, H, K]``. ``lower_bound`` None selects the softplus gate.
    """
    num_heads = f.shape[1]
    rate = np.exp(a_log.reshape(-1)[:num_heads, None])
    z = f + dt_bias.reshape(f.shape[1:])
    return -rate * softplus(z) if lower_bound is None else lower_bound * sigmoid(rate * z)


def kda_recurrence(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array | None
) -> tuple[Array, Array]:
    """Decay, read with k, write, read with q: one token after the other (spec 3.4).

    Shapes: ``q, k [T, H, K]`` (normalised, q scaled), ``v [T, H, V]``, ``g [T, H, K]``
    (log-decay), ``beta [T, H]`` (after its sigmoid), ``state [H, V, K]`` or None for zeros
    -> ``o [T, H, V]``, new state ``[H, V, K]``.
    """
    num_tokens, num_heads, k_dim = q.shape
    s = np.zeros((num_heads, v.shape[2], k_dim), q.dtype) if state is None else state.copy()
    o = np.empty((num_tokens, num_heads, v.shape[2]), q.dtype)
    for t in range(num_tokens):
        s *= np.exp(g[t])[:, None, :]
        r = np.einsum("hvk,hk->hv", s, k[t])
        s += ((v[t] - r) * beta[t][:, None])[:, :, None] * k[t][:, None, :]
        o[t] = np.einsum("hvk,hk->hv", s, q[t])
    return o, s
