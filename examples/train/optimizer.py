"""Muon for the matrices, Adam for the rest; learning rates are tensors, so a CUDA graph can hold
the whole step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.train.weights import Parameters

MUON_LR, ADAM_LR = 4e-3, 3e-3
MUON_MOMENTUM, MUON_DECAY = 0.95, 0.1
MUON_RMS = 0.2  # size of an update's elements, times the learning rate
ADAM_BETAS, ADAM_EPS = (0.9, 0.95), 1e-10
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NOT_MATRICES = (
    *("embed_tokens", "lm_head", "gate", "b_proj", "_conv1d", "A_log"),
    *("markov_w1", "markov_w2"),
)


def is_muon(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a checkpoint tensor is a hidden matrix."""
    leaf = name.removesuffix(".weight").rsplit(".", 1)[-1]
    return len(shape) == 2 and shape[0] > 1 and not leaf.endswith(NOT_MATRICES)


@dataclass(slots=True)
class MatrixGroup:
    """All matrices of one shape ``[r, c]`` (r <= c after ``.mT``): masters, gradients, momentum."""

    masters: list[Tensor]
    grads: list[Tensor]
    is_tall: bool
    momentum: Tensor


class Optimizer:
    """Reads the leaves' gradients, moves the masters, publishes new leaves."""

    def __init__(self, weights: Parameters) -> None:
        self._weights = weights
        device = next(iter(weights.masters.values())).device
        for leaf in weights.leaves.values():
            leaf.grad = torch.zeros_like(leaf)
        self.scale = torch.ones((), device=device)  # of both learning rates
        self.step_count = torch.zeros((), device=device)
        self.groups = self._matrix_groups()
        self._adam()

    def _matrix_groups(self) -> list[MatrixGroup]:
        """Batches ``[n, r, c]`` of equal shape; a stack is one batch already."""
        found: defaultdict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        w = self._weights
        for name in sorted(w.layout.stacks):
            _, rows, cols = w.masters[name].shape
            inner = rows // 2 if name.endswith("w13") else rows
            pair = (self._master(name), self._grad(name))
            found[inner, cols].append(tuple(t.view(-1, inner, cols) for t in pair))  # type: ignore[arg-type]
        for name, part in w.layout.parts.items():
            if part.expert is None and is_muon(name, part.shape):
                master, grad = (t(part.fused) for t in (self._master, self._grad))
                found[part.shape].append((part.view(master)[None], part.view(grad)[None]))  # type: ignore[index]
        return [self._matrix_group(pairs) for pairs in found.values()]

    def _master(self, name: str) -> Tensor:
        return self._weights.masters[name]

    def _grad(self, name: str) -> Tensor:
        grad = self._weights.leaves[name].grad
        assert grad is not None
        return grad

    def _matrix_group(self, pairs: list[tuple[Tensor, Tensor]]) -> MatrixGroup:
        masters, grads = [p[0] for p in pairs], [p[1] for p in pairs]
        rows, cols = masters[0].shape[1:]
        return MatrixGroup(masters, grads, rows > cols, torch.zeros_like(torch.cat(masters)))

    def _adam(self) -> None:
        w = self._weights
        names = [
            (n, p)
            for n, p in w.layout.parts.items()
            if p.expert is None and not is_muon(n, p.shape)
        ]
        self._vectors = [p.view(self._master(p.fused)) for _, p in names]
        self._vector_grads = [p.view(self._grad(p.fused)) for _, p in names]
        self._wide = [torch.zeros_like(v) for v in self._vectors]
        self.first = [torch.zeros_like(v) for v in self._vectors]
        self.second = [torch.zeros_like(v) for v in self._vectors]

    def zero_grad(self) -> None:
        """Gradients to zero, in place (their memory is known to the views here)."""
        torch._foreach_zero_(
            [g for g in (leaf.grad for leaf in self._weights.leaves.values()) if g is not None]
        )

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients that the leaves hold."""
        self.step_count += 1
        for group in self.groups:
            self._muon_step(group)
        self._adam_step()
        self._weights.publish()

    def _muon_step(self, group: MatrixGroup) -> None:
        grad = torch.cat(group.grads).float()
        group.momentum.lerp_(grad, 1 - MUON_MOMENTUM)
        direction = torch.lerp(grad, group.momentum, MUON_MOMENTUM)
        update = orthogonalise(direction.mT if group.is_tall else direction)
        update = (update.mT if group.is_tall else update).float()
        rate = self.scale * MUON_LR
        size = MUON_RMS * max(update.shape[1:]) ** 0.5
        torch._foreach_mul_(group.masters, 1 - rate * MUON_DECAY)
        delta = update * (-rate * size)
        torch._foreach_add_(group.masters, list(delta.split([len(m) for m in group.masters])))

    def _adam_step(self) -> None:
        b1, b2 = ADAM_BETAS
        torch._foreach_copy_(self._wide, self._vector_grads)
        torch._foreach_lerp_(self.first, self._wide, 1 - b1)
        torch._foreach_mul_(self.second, b2)
        torch._foreach_addcmul_(self.second, self._wide, self._wide, 1 - b2)
        unbias = torch.rsqrt(1 - b2**self.step_count)
        size = torch._foreach_sqrt(self.second)
        torch._foreach_mul_(size, unbias)
        torch._foreach_add_(size, ADAM_EPS)
        delta = torch._foreach_div(self.first, size)
        rate = self.scale * ADAM_LR / (1 - b1**self.step_count)
        torch._foreach_mul_(delta, -rate)
        torch._foreach_add_(self._vectors, delta)

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed run needs besides the masters."""
        state = {f"momentum.{n}": g.momentum for n, g in enumerate(self.groups)}
        state |= {f"first.{n}": t for n, t in enumerate(self.first)}
        state |= {f"second.{n}": t for n, t in enumerate(self.second)}
        return state | {"step_count": self.step_count}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of :meth:`state`."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


def orthogonalise(g: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices, roughly: ``g [n, r, c]``, r <= c, in bf16 on CUDA."""
    x = g.bfloat16() if g.is_cuda else g
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(5):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
