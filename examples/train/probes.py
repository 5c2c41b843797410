"""What the reference saw while it ran: gates, experts, running sums; the draft on top of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from k3compiler.config import ModelConfig
from k3compiler.reference.dspark import DraftModel, accepted_prefix
from k3compiler.reference.kda import kda_gate
from k3compiler.reference.model import ReferenceModel

Array = NDArray[Any]
SPAN = 64  # tokens over which memory is retained, or not
RETAINED_EDGES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)


class ProbedModel(ReferenceModel):
    """The reference, which keeps its log-decays and running sums.

    Attributes:
        gates: ``[T, H, K]`` of the last call, by KDA layer.
        sums: the running sum P after each layer, ``[T, D]``, of the last call.
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Array], dtype: DTypeLike = np.float64
    ) -> None:
        super().__init__(config, weights, dtype)
        self.gates: dict[int, Array] = {}
        self.sums: dict[int, Array] = {}

    def _linear(self, x: Array, name: str) -> Array:
        out = super()._linear(x, name)
        if name.endswith(".f_b_proj"):
            own = name.removesuffix(".f_b_proj")
            c = self.config.kda
            self.gates[int(name.split(".")[2])] = kda_gate(
                out.reshape(len(x), c.num_heads, -1),
                self.weights[f"{own}.A_log"],
                self.weights[f"{own}.dt_bias"],
                c.gate_lower_bound,
            )
        return out

    def _mix(self, site: str, candidates: list[Array]) -> Array:
        last = self.config.num_layers
        if site == "model.output_attn_res":
            self.sums[last - 1] = candidates[-1]
        elif site.endswith(".self_attention_res"):
            self.sums[int(site.split(".")[2]) - 1] = candidates[-1]
        return super()._mix(site, candidates)


def retained(gates: Array) -> Array:
    """``exp(sum g)`` over each whole span: ``[T, H, K]`` -> ``[T // SPAN, H, K]``."""
    spans = len(gates) // SPAN
    return np.exp(gates[: spans * SPAN].reshape(spans, SPAN, *gates.shape[1:]).sum(1))


def histogram(values: Array) -> list[float]:
    """Shares of the values between RETAINED_EDGES."""
    counts = np.histogram(values, RETAINED_EDGES)[0]
    return (counts / values.size).round(4).tolist()


def expert_loads(chosen: Sequence[Array], num_experts: int) -> Array:
    """Tokens that each expert got: ids ``[T, k]`` of several calls -> ``[E]``."""
    return np.bincount(np.concatenate([ids.ravel() for ids in chosen]), minlength=num_experts)


def speculate(draft: DraftModel, taps: Array, tokens: Array, first: int) -> list[int]:
    """Accepted drafts of each step of greedy speculative decoding.

    ``tokens [T]`` is a prompt of ``first`` tokens and the target's greedy continuation, ``taps
    [T, layers, D]`` the target's sums on them. A step stands behind the last one's bonus.
    """
    cache, accepted, at = draft.new_cache(), list[int](), first
    block = draft.config.block
    while at + block < len(tokens):
        draft.extend(cache, taps[cache.num_tokens : at])
        proposal = draft.propose(int(tokens[at]), cache)
        accepted.append(accepted_prefix(proposal.tokens, tokens[at + 1 : at + 1 + block]))
        at += accepted[-1] + 1
    return accepted
