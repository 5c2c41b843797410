"""How the parameters start."""

from __future__ import annotations

import torch
from torch import Tensor

from examples.train.weights import Weights
from k3compiler.config import ModelConfig

UNUSED_A_LOG = 9.0  # fills A_log past the heads: wrong by far wherever it is read
# Of what writes to the residual; little of the routed experts, whose choice is noise at first.
GAINS = {"o_proj": 0.5, "down_proj": 0.5, "routed_expert_up_proj": 0.2}
DT_BIAS = (-8.5, -0.5)  # of the first and the last head: from long memory to almost none


@torch.no_grad()
def initialise(weights: Weights, seed: int) -> None:
    """Masters from the seed (drawn on the CPU, so alike on every device), then the leaves."""
    source = torch.Generator().manual_seed(seed)
    for name, view in weights.parts():
        view.copy_(_initial(name, view, weights.config, source))
    weights.publish()


def _initial(name: str, view: Tensor, config: ModelConfig, source: torch.Generator) -> Tensor:
    leaf = name.removesuffix(".weight").rsplit(".", 1)[-1]
    noise = torch.randn(view.shape, generator=source)
    heads, bounds = config.kda.num_heads, DT_BIAS
    if leaf == "A_log":
        return torch.cat([0.2 * noise[:heads], torch.full_like(noise[heads:], UNUSED_A_LOG)])
    if leaf == "dt_bias":
        centre = torch.linspace(*bounds, heads)
        return (centre[:, None] + 0.7 * noise.view(heads, -1)).reshape(-1)
    if leaf.endswith("_conv1d"):
        taps = torch.zeros_like(noise)
        taps[..., -1] = 0.7
        return taps + 0.15 * noise
    if leaf.endswith("_res_proj") or leaf == "lm_head":
        return torch.zeros_like(noise)
    if noise.dim() == 1:  # every other vector is a norm's weight
        return torch.ones_like(noise)
    if leaf == "embed_tokens":
        return 0.5 * noise
    return GAINS.get(leaf, 1.0) * noise * noise.shape[-1] ** -0.5
