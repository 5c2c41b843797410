"""A tiny package for tests: one model, two kernels, two plans; every value made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from k3compiler.config import KdaConfig, MlaConfig, ModelConfig
from k3compiler.package.manifest import (
    ArgRecord,
    BufferRecord,
    KernelRecord,
    LaunchStep,
    Manifest,
    ParamRecord,
    Plan,
    StorageRecord,
    TargetRecord,
    WeightMap,
    model_digest,
)
from k3compiler.package.writer import PackageWriter

VOCAB, HIDDEN = 32, 8


def sample_config() -> ModelConfig:
    """One KDA layer (K = V = 4, two heads) and one MLA layer (latent 6 + rope 2)."""
    return ModelConfig(
        name="kimi_linear",
        vocab_size=VOCAB,
        hidden_dim=HIDDEN,
        num_layers=2,
        mla_layers=(1,),
        num_dense=2,
        dense_dim=16,
        activation="silu",
        situ_beta=4.0,
        situ_linear_beta=None,
        rms_eps=1e-5,
        attn_res_block=None,
        max_context=4096,
        kda=KdaConfig(2, 4, 4, -5.0, True, 2),
        mla=MlaConfig(2, None, 6, 4, 2, 4, False),
        moe=None,
        bos_id=None,
        eos_id=None,
        pad_id=None,
    )


def _buffer(name: str, dtype: str, *shape: str | int, access: str = "r") -> ArgRecord:
    assert access in ("r", "w", "rw")
    return ArgRecord(name, "buffer", dtype, shape, access=access)


def _scalar(name: str, dtype: str = "i32") -> ArgRecord:
    return ArgRecord(name, "scalar", dtype)


def kernels(files: dict[str, str] | None = None) -> tuple[KernelRecord, ...]:
    """``embed``: x[t] = table[tokens[t]] * scale; ``head``: logits[r] = sum over x[rows[r]]; ``feed``:
    tokens from a decode record in which every live row is set anew (no ``next_token`` here)."""
    own = files or {}
    embed = KernelRecord(
        symbol="embed",
        family="embedding",
        op="k3.embed",
        args=(
            _buffer("tokens", "i32", "T"),
            _buffer("table", "f32", VOCAB, HIDDEN),
            _buffer("x", "f32", "T", HIDDEN, access="w"),
            _scalar("T"),
            _scalar("scale", "f32"),
        ),
        grid=("T", 1, 1),
        files=own,
    )
    head = KernelRecord(
        symbol="head",
        family="head",
        op="k3.head",
        args=(
            _buffer("x", "f32", "T", HIDDEN),
            _buffer("rows", "i32", "R"),
            _buffer("table", "f32", VOCAB, HIDDEN),
            _buffer("logits", "f32", "R", VOCAB, access="w"),
            _scalar("T"),
            _scalar("R"),
        ),
        grid=("R", VOCAB // 8, 1),
        files=own,
    )
    feed = KernelRecord(
        symbol="feed",
        family="feed",
        op="k3.step_metadata",
        args=(
            _buffer("record", "i32", "REC"),
            _buffer("tokens", "i32", "T", access="w"),
            _buffer("rows", "i32", "T", access="w"),
            _scalar("REC"),
            _scalar("T"),
        ),
        grid=("T", 1, 1),
        files=own,
    )
    return embed, head, feed


def plan(phase: Any) -> Plan:
    """Embed, then the head on the rows that want logits; a decode step is fed from its record."""
    feed = LaunchStep(
        "feed",
        ("decode_record", "tokens", "logit_rows", "1 + T*(11 + P)", "T"),
        ("T", "1", "1"),
        "k3.step_metadata",
    )
    first = (feed,) if phase == "decode" else ()
    return Plan(
        phase=phase,
        inputs=(*(("decode_record",) if first else ()), "tokens", "logit_rows"),
        outputs=("logits",),
        buffers=(
            BufferRecord("x", "f32", ("T", HIDDEN), "workspace", 0, len(first), len(first) + 1),
            BufferRecord("logits", "f32", ("R", VOCAB), "output"),
        ),
        storage=(StorageRecord(0, f"T*{HIDDEN}*4"),),
        steps=(
            *first,
            LaunchStep(
                "embed", ("tokens", "w:table", "x", "T", "f:1.5"), ("T", "1", "1"), "k3.embed", 0
            ),
            LaunchStep(
                "head",
                ("x", "logit_rows", "w:head", "logits", "T", "R"),
                ("R", str(VOCAB // 8), "1"),
                "k3.head",
            ),
        ),
    )


def weights() -> WeightMap:
    shape = (VOCAB, HIDDEN)
    return WeightMap(
        (
            ParamRecord("table", "f32", shape, {"tensor": "model.embed_tokens.weight"}),
            ParamRecord("head", "f32", shape, {"tensor": "lm_head.weight"}),
        )
    )


def manifest(**changes: Any) -> Manifest:
    model = sample_config().to_dict()
    fields: dict[str, Any] = {
        "version": "0.1.0",
        "model": model,
        "model_id": model_digest(model),
        "target": TargetRecord("cpu", "cpu", "x86-64"),
        "dtype": "float32",
        "moe": "a16w4",
        "kernels": kernels(),
        "plans": {"prefill": "plans/prefill.json", "decode": "plans/decode.json"},
    }
    return Manifest(**(fields | changes))


def write_sample(path: Path, extra: dict[str, bytes] | None = None, /, **changes: Any) -> Manifest:
    """Write the sample package with further files; returns the sealed manifest."""
    with PackageWriter(path) as writer:
        writer.add_plan(plan("prefill"))
        writer.add_plan(plan("decode"))
        writer.add_weights(weights())
        for name, data in (extra or {}).items():
            writer.add_bytes(name, data)
        return writer.commit(manifest(**changes))
