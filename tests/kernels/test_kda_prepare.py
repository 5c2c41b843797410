"""What the chunk form must hold beyond agreeing once: causality bit by bit, and hard gates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import k3compiler.check.cases.kda_prefill as prefill
from k3compiler.check.case import judge, make_case, poisoned
from k3compiler.check.cases.kda_tables import unit_keys
from k3compiler.ir.tile_interpreter import run_tile_program
from k3compiler.kernels.base import build_program

pytestmark = pytest.mark.t1

DIMS = {"heads": 1, "k_dim": 32, "v_dim": 16, "block_k": 32, "block_v": 16}
EXACT = {"dtype": "f32", "precision": "ieee", "inverse_precision": "ieee"}
ROUNDED = {"dtype": "bf16", "precision": "tf32", "inverse_precision": "tf32"}


def _prepare(params: dict[str, Any], inputs: dict[str, Any], tokens: int) -> dict[str, Any]:
    """kda_prepare of one chunk that holds the first ``tokens`` rows of ``inputs``."""
    outputs = {
        "w": poisoned((1, 1, 64, 32), "f32"),
        "u": poisoned((1, 1, 16, 64), "f32"),
        "q_decayed": poisoned((1, 1, 64, 32), "f32"),
        "k_tail": poisoned((1, 1, 64, 32), "f32"),
        "m": poisoned((1, 1, 64, 64), "f32"),
        "gamma": poisoned((1, 1, 32), "f32"),
    }
    table = {"chunk_start": np.array([0], np.int32), "chunk_end": np.array([tokens], np.int32)}
    cut = {name: a[:tokens].copy() for name, a in inputs.items()}
    run_tile_program(
        build_program("kda_prepare", params, symbol="k"), {**cut, **table, **outputs}, (1, 1, 1)
    )
    return outputs


@pytest.mark.parametrize("bound", [-5.0, None])
def test_later_tokens_leave_earlier_rows_alone(bound: float | None) -> None:
    rng = np.random.default_rng(5)
    g = np.cumsum(-5 * rng.random((64, 1, 32)), axis=0).astype(np.float32)
    inputs = {
        "q": unit_keys(rng, (64, 1, 32)).astype(np.float32),
        "k": unit_keys(rng, (64, 1, 32)).astype(np.float32),
        "v": rng.standard_normal((64, 1, 16)).astype(np.float32),
        "g": g,
        "beta": rng.random((64, 1)).astype(np.float32),
    }
    params = dict(DIMS, lower_bound=bound, **EXACT)
    long = _prepare(params, inputs, 64)
    for tokens in (9, 33, 50):
        short = _prepare(params, inputs, tokens)
        for name in ("w", "q_decayed", "m"):
            np.testing.assert_array_equal(short[name][0, 0, :tokens], long[name][0, 0, :tokens])
            assert not short[name][0, 0, tokens:, :tokens].any()  # rows behind the end add nothing
        np.testing.assert_array_equal(short["u"][0, 0, :, :tokens], long["u"][0, 0, :, :tokens])


GATES = {
    "near the bound": lambda rng, shape: -(4.9 + 0.1 * rng.random(shape)),
    "near zero": lambda rng, shape: -(10.0 ** rng.uniform(-4, -1, shape)),
}


@pytest.mark.parametrize("form", [EXACT, ROUNDED], ids=["f32", "tf32"])
@pytest.mark.parametrize("gates", GATES)
def test_hard_gates_and_keys_that_agree(
    monkeypatch: pytest.MonkeyPatch, gates: str, form: dict[str, Any]
) -> None:
    def decay(
        rng: np.random.Generator, tokens: int, heads: int, k_dim: int, _bound: float | None
    ) -> Any:
        return GATES[gates](rng, (tokens, heads, k_dim)).astype(np.float32)

    monkeypatch.setattr(prefill, "random_decay", decay)
    params = dict(DIMS, lower_bound=-5.0, key_cosine=0.9, **form)
    case = make_case("kda_prepare", params, np.random.default_rng(3), {"T": 70, "S": 1})
    program = {k: v for k, v in params.items() if k != "key_cosine"}
    chunks = len(case.arguments["chunk_start"])
    run_tile_program(
        build_program("kda_prepare", program, symbol="k"), case.arguments, (1, chunks, 1)
    )
    for verdict in judge(case, case.arguments):
        assert verdict.passed, verdict
