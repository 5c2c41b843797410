"""The training model computes what the reference computes, forwards and backwards."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from k3compiler.dtypes import pack_mxfp4, unpack_mxfp4
from k3compiler.reference.model import ReferenceModel
from k3compiler.reference.random_checkpoint import random_tensors
from k3compiler.reference.tiny import tiny_config

torch = pytest.importorskip("torch", reason="torch is not installed")
sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.train.kda import (  # noqa: E402
    AffineScan,
    UnitLowerInverse,
    kda_chunked,
    unit_lower_inverse,
)
from examples.train.model import Model  # noqa: E402
from examples.train.moe import (  # noqa: E402
    Collect,
    ExpertLinear,
    Spread,
    balanced_bias,
    fake_mxfp4,
    make_plan,
)
from examples.train.weights import Weights  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def _plain(tensors: dict[str, np.ndarray]) -> dict[str, object]:
    plain: dict[str, object] = {}
    for name, value in tensors.items():
        if name.endswith("_packed"):
            base = name.removesuffix("_packed")
            plain[base] = torch.tensor(unpack_mxfp4(value, tensors[f"{base}_scale"]))
        elif not name.endswith("_scale"):
            plain[name] = torch.tensor(value.astype(np.float32))
    return plain


def test_logits_are_the_references() -> None:
    """Random weights, decays over the whole range, three chunks, two sequences."""
    config, rng = tiny_config("spec"), np.random.default_rng(0)
    tensors = dict(random_tensors(config, 3))
    for name in [n for n in tensors if n.endswith("dt_bias")]:
        moved = tensors[name] + rng.normal(0, 3, tensors[name].shape)
        tensors[name] = moved.astype(np.float32)
    weights = Weights(config, torch.device("cpu"))
    weights.load(_plain(tensors))
    ids = rng.integers(0, config.vocab_size, (2, 192))
    got = Model(weights).logits(torch.tensor(ids)).detach().numpy().reshape(2, 192, -1)
    reference = ReferenceModel(config, tensors, np.float64)
    for row, tokens in zip(got, ids, strict=True):
        want = reference.forward(tokens)
        assert np.abs(row - want).max() < 2e-4
        assert (row.argmax(1) == want.argmax(1)).all()


def test_every_checkpoint_tensor_has_a_place() -> None:
    config = tiny_config("spec")
    layout = Weights(config, torch.device("cpu")).layout
    plain = {n for n in _plain(dict(random_tensors(config))) if "correction_bias" not in n}
    assert set(layout.parts) == plain


def _recurrence(q, k, v, g, beta):  # type: ignore[no-untyped-def]
    """Spec 3.4 by token, differentiable: chunk layout in and out."""
    n, b, h, c, d = q.shape
    flat = [x.permute(1, 2, 0, 3, 4).reshape(b, h, n * c, d) for x in (q, k, v, g)]
    q, k, v, g = flat
    beta = beta.permute(1, 2, 0, 3).reshape(b, h, n * c)
    state, out = torch.zeros(b, h, d, d, dtype=q.dtype), []
    for t in range(n * c):
        state = state * g[:, :, t].exp()[..., None]
        read = (state * k[:, :, t, :, None]).sum(2)
        delta = (v[:, :, t] - read) * beta[:, :, t, None]
        state = state + k[:, :, t, :, None] * delta[:, :, None]
        out.append((state * q[:, :, t, :, None]).sum(2))
    o = torch.stack(out, 2).reshape(b, h, n, c, d)
    return o.permute(2, 0, 1, 3, 4)


def test_kda_gradients_are_the_recurrences() -> None:
    shape = (2, 1, 2, 64, 16)
    unit = torch.nn.functional.normalize
    q, k, v = unit(torch.randn(shape), dim=-1), unit(torch.randn(shape), dim=-1), torch.randn(shape)
    g = -5 * torch.sigmoid(3 * torch.randn(shape))
    inputs = [x.double().requires_grad_() for x in (q, k, v, g, torch.rand(shape[:-1]))]
    weight = torch.randn(shape).double()
    want = torch.autograd.grad((_recurrence(*inputs) * weight).sum(), inputs)
    narrow = [x.detach().float().requires_grad_() for x in inputs]
    got = torch.autograd.grad((kda_chunked(*narrow) * weight.float()).sum(), narrow)
    for mine, theirs in zip(got, want, strict=True):
        assert (mine - theirs).norm() / theirs.norm() < 1e-4


def test_own_gradients() -> None:
    """Hand-written backward passes against finite differences, in float64."""
    a = torch.randn(2, 64, 64).double().tril(-1).mul_(0.2).requires_grad_()
    inverse = unit_lower_inverse(a)
    assert torch.allclose(inverse @ (torch.eye(64).double() + a), torch.eye(64).double())
    assert torch.autograd.gradcheck(lambda x: UnitLowerInverse.apply(x.tril(-1)), a, fast_mode=True)
    x, b = torch.randn(3, 2, 4, 4).double(), torch.randn(3, 2, 4, 4).double()
    assert torch.autograd.gradcheck(AffineScan.apply, (x.requires_grad_(), b.requires_grad_()))


def test_expert_rows_are_a_loop_over_tokens() -> None:
    tokens, experts, top_k = 300, 5, 2
    z = torch.randn(tokens, 8, requires_grad=True)
    w = torch.randn(experts, 6, 8, requires_grad=True)
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
    plan = make_plan(ids, experts)
    rows = Spread.apply(z, plan.source, plan.place, top_k).view(-1, 128, 8)
    y = ExpertLinear.apply(rows, w, plan.expert).view(-1, 6)
    got = Collect.apply(y, plan.source, plan.is_used, plan.place, top_k)
    want = torch.einsum("tl,tkfl->tf", z, w[ids])
    assert torch.allclose(got, want, atol=1e-5)
    weight = torch.randn_like(want)
    mine = torch.autograd.grad((got * weight).sum(), (z, w))
    theirs = torch.autograd.grad((want * weight).sum(), (z, w))
    for one, other in zip(mine, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    assert plan.load.tolist() == torch.bincount(ids.reshape(-1), minlength=experts).tolist()


def test_fake_quantisation_is_the_checkpoints() -> None:
    w = torch.randn(6, 96) * torch.exp(3 * torch.randn(6, 1))
    w[0, :32] = 0
    w[1, :8] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0])  # ties, saturation
    assert np.array_equal(fake_mxfp4(w).numpy(), unpack_mxfp4(*pack_mxfp4(w.numpy())))


def test_balanced_bias_balances() -> None:
    scores = torch.sigmoid(torch.randn(4000, 16) + torch.linspace(-2, 2, 16))
    bias = torch.zeros(16)
    for _ in range(30):
        bias.lerp_(balanced_bias(scores, bias, 4), 0.3)
    load = torch.bincount((scores + bias).topk(4).indices.reshape(-1), minlength=16).float()
    assert load.max() / load.mean() < 1.1
