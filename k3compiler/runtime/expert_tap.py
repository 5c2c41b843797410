"""Recording the experts a run chose, or making it take those of another run.

Whole-model comparisons in bf16 force the reference's choices, because a flipped expert is not an
arithmetic error (design, section 7). Weights stay the model's own: sigmoid scores of the forced
experts, renormalised as the router does. Source: spec 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3compiler.package.expr import evaluate
from k3compiler.package.manifest import KernelRecord, LaunchStep
from k3compiler.runtime.executor import Executor
from k3compiler.runtime.plan_runner import PlanRunner
from k3compiler.runtime.step import StepInputs

ROUTER_FAMILY, FEW_FAMILY = "moe_topk", "moe_choose"  # the latter says it in places, too
ONE_TOKEN_FAMILY = "moe_route"  # this one sorts
FAMILIES = (ROUTER_FAMILY, FEW_FAMILY, ONE_TOKEN_FAMILY)
_RENORMALIZE_EPS = 1e-20


@dataclass(slots=True)
class ExpertTap:
    """Hooks behind every router of both plans while the context is open; one sequence at a time.

    Args:
        forced: by layer, the experts to take: ``[positions, K]``. Layers without an entry choose
            for themselves.

    Attributes:
        chosen: by layer and position, the router's own choice, in its order.
        num_flips: choices (tokens times K) of forced layers that the router would not have made.
    """

    executor: Executor
    forced: Mapping[int, NDArray[Any]] = field(default_factory=dict[int, NDArray[Any]])
    chosen: dict[int, dict[int, NDArray[Any]]] = field(
        default_factory=dict[int, dict[int, NDArray[Any]]]
    )
    num_flips: int = 0

    def __enter__(self) -> ExpertTap:
        kernels = {k.symbol: k for k in self.executor.package.manifest.kernels}
        for phase in self.executor.package.plans.values():
            runner = self.executor.runner(phase.phase)
            for index, step in enumerate(phase.steps):
                if isinstance(step, LaunchStep) and kernels[step.launch].family in FAMILIES:
                    tap = _RouterTap(self, step, kernels[step.launch])
                    runner.after_step[index] = tap.after
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for phase in self.executor.package.plans.values():
            self.executor.runner(phase.phase).after_step.clear()


@dataclass(frozen=True, slots=True)
class _RouterTap:
    """The hook behind one router launch."""

    tap: ExpertTap
    step: LaunchStep
    kernel: KernelRecord

    def after(self, runner: PlanRunner, step: StepInputs) -> None:
        if not evaluate(self.step.grid[0], step.symbols):
            return  # the step's size takes another form of the router
        names = {a.name: text for a, text in zip(self.kernel.args, self.step.args, strict=True)}
        layer = self.step.layer
        assert layer is not None, "a router belongs to a layer"
        positions = step.positions()
        own = runner.read(names["ids"])
        self.tap.chosen.setdefault(layer, {}).update(zip(positions.tolist(), own, strict=True))
        if layer not in self.tap.forced:
            return
        ids = np.asarray(self.tap.forced[layer])[positions]
        self.tap.num_flips += sum(
            len(set(a) - set(b)) for a, b in zip(own.tolist(), ids.tolist(), strict=True)
        )
        runner.write(names["ids"], ids)
        runner.write(names["weights"], self._weights(runner.read(names["logits"]), ids))
        if self.kernel.family == ONE_TOKEN_FAMILY:
            self._sort(runner, names, ids[0])
        if self.kernel.family == FEW_FAMILY:
            local = ids - evaluate(names["expert_first"], {"rank": 0})
            runner.write(names["places"], self._places(local))

    def _places(self, local: NDArray[Any]) -> NDArray[np.uint8]:
        """1 and the rank of each local expert among a token's choices, 0 for the rest (docs: kernels/moe_few.py)."""
        places = np.zeros((len(local), self.kernel.params["local_experts"]), np.uint8)
        token, choice = np.nonzero((local >= 0) & (local < places.shape[1]))
        places[token, local[token, choice]] = choice + 1
        return places

    def _sort(self, runner: PlanRunner, names: Mapping[str, str], ids: NDArray[Any]) -> None:
        """One token's pairs: a block for each local expert, ascending (docs: kernels/moe_route.py)."""
        params = self.kernel.params
        local = ids - evaluate(names["expert_first"], {"rank": 0})
        mine = np.flatnonzero((local >= 0) & (local < params["local_experts"]))
        order = mine[np.argsort(local[mine])]
        pairs = np.full(runner.read(names["pairs"]).shape, -1, np.int32)
        pairs[: len(order) * params["block_rows"] : params["block_rows"]] = order
        owners = np.full(runner.read(names["block_expert"]).shape, -1, np.int32)
        owners[: len(order)] = local[order]
        for name, values in (("pairs", pairs), ("block_expert", owners)):
            runner.write(names[name], values)
        runner.write(names["num_blocks"], np.array([len(order)], np.int32))

    def _weights(self, logits: NDArray[Any], ids: NDArray[Any]) -> NDArray[np.float32]:
        scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
        chosen = np.take_along_axis(scores, ids.astype(np.int64), axis=1)
        if self.kernel.params["renormalize"]:
            chosen /= chosen.sum(axis=1, keepdims=True) + _RENORMALIZE_EPS
        return (chosen * self.kernel.params["scale"]).astype(np.float32)
