"""The DSpark draft in float32 numpy, many sequences at once (spec section 9).

What it keeps of a verified position (a latent and a rotated key per layer, as wide as a cell of the
target) lies in the pages of the target's own cells, as further layers: prefix hits, copies, moves,
spills and evictions take it along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from k3compiler.draft_config import (
    DraftConfig,
    draft_tensors,
    load_draft_config,
    yarn_frequencies,
)
from k3compiler.dtypes import numpy_dtype
from k3compiler.errors import K3Error
from k3compiler.package.checkpoint_names import canonical_names
from k3compiler.package.expr import cdiv
from k3compiler.package.manifest import Manifest, Plan
from k3compiler.package.safetensors_map import CheckpointFiles
from k3compiler.runtime.speculation import Drafter, Known
from k3compiler.runtime.state import PAGES_STATE, StateRecord
from k3compiler.runtime.weights import Checkpoint

Array = NDArray[Any]


class DSparkModel:
    """The draft's arithmetic.

    Args:
        config: its shape.
        weights: its own tensors by name (spec 9.2).
        head: the target's, ``[vocab, hidden]``.
    """

    def __init__(self, config: DraftConfig, weights: Mapping[str, Any], head: Any) -> None:
        self.config = config
        self._weights = {n: np.asarray(w).astype(np.float32) for n, w in weights.items()}
        self._head = np.asarray(head).astype(np.float32)
        self._frequencies = yarn_frequencies(config.rope, config.rope_dim)

    def rows(self, taps: Array, positions: Array) -> Array:
        """What to keep of verified positions.

        Shapes: ``taps [T, layers * target_dim]`` (layers ascending), ``positions [T]``
        -> ``[T, num_layers, row_dim]``.
        """
        c = self._norm(self._linear(taps, "context_proj"), "context_norm")
        each = [self._latent_rows(n, c, positions) for n in range(self.config.num_layers)]
        return np.stack(each, axis=1)

    def propose(self, anchors: Array, contexts: Sequence[Array]) -> Array:
        """Greedy drafts behind the anchors, the tokens that follow the contexts.

        Shapes: ``anchors [S]``, a context ``[n, num_layers, row_dim]`` per sequence -> ``[S, block]``.
        """
        hidden = self._block(anchors, contexts)
        logits = (hidden.reshape(-1, hidden.shape[-1]) @ self._head.T).reshape(
            *hidden.shape[:2], -1
        )
        w1, w2 = (self._weights[f"markov_head.markov_{w}"] for w in ("w1", "w2"))
        drafts, before = np.zeros(hidden.shape[:2], np.int64), anchors
        for i in range(self.config.block):
            before = (logits[:, i] + w1[before] @ w2.T).argmax(axis=1)
            drafts[:, i] = before
        return drafts

    def _block(self, anchors: Array, contexts: Sequence[Array]) -> Array:
        """The normed hidden rows of every sequence's query block. Shapes: ``[S, block, D]``."""
        c = self.config
        ids = np.full((len(anchors), c.block), c.mask_id)
        ids[:, 0] = anchors
        lengths = np.array([len(rows) for rows in contexts])
        positions = (lengths[:, None] + np.arange(c.block)).reshape(-1)
        x: Array = self._weights["embed_tokens.weight"][ids.reshape(-1)]
        for n in range(c.num_layers):
            y = self._norm(x, f"layers.{n}.input_layernorm")
            x = x + self._attention(n, y, [rows[:, n] for rows in contexts], positions)
            y = self._norm(x, f"layers.{n}.post_attention_layernorm")
            gate, up = (self._linear(y, f"layers.{n}.mlp.{p}_proj") for p in ("gate", "up"))
            x = x + self._linear(gate / (1 + np.exp(-gate)) * up, f"layers.{n}.mlp.down_proj")
        return self._norm(x, "final_norm").reshape(len(anchors), c.block, -1)

    def _attention(
        self, layer: int, x: Array, contexts: Sequence[Array], positions: Array
    ) -> Array:
        """Every query sees its sequence's context and its whole block; latents stay compressed."""
        c, name = self.config, f"layers.{layer}.self_attn"
        latent_q = self._norm(self._linear(x, f"{name}.q_a_proj"), f"{name}.q_a_layernorm")
        q = self._linear(latent_q, f"{name}.q_b_proj").reshape(len(x), c.num_heads, -1)
        up = self._weights[f"{name}.kv_b_proj.weight"].reshape(c.num_heads, -1, c.kv_lora_rank)
        absorbed = np.einsum("thd,hdr->thr", q[..., : c.nope_dim], up[:, : c.nope_dim])
        rotated = self._rotate(q[..., c.nope_dim :], positions)
        queries = np.concatenate([absorbed, rotated], axis=2) * np.float32(c.softmax_scale)
        own = self._latent_rows(layer, x, positions)
        read = np.empty((len(x), c.num_heads, c.kv_lora_rank), np.float32)
        for s, context in enumerate(contexts):
            block = slice(s * c.block, (s + 1) * c.block)
            keys = np.concatenate([context, own[block]])
            scores = queries[block].reshape(-1, c.row_dim) @ keys.T
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            found = scores @ keys[:, : c.kv_lora_rank] / scores.sum(axis=1, keepdims=True)
            read[block] = found.reshape(c.block, c.num_heads, -1)
        o = np.einsum("thr,hdr->thd", read, up[:, c.nope_dim :])
        return self._linear(o.reshape(len(x), -1), f"{name}.o_proj")

    def _latent_rows(self, layer: int, x: Array, positions: Array) -> Array:
        """``[latent | rotated key]`` of rows ``x [T, D]``."""
        name, rank = f"layers.{layer}.self_attn", self.config.kv_lora_rank
        kv = self._linear(x, f"{name}.kv_a_proj_with_mqa")
        latent = self._norm(kv[:, :rank], f"{name}.kv_a_layernorm")
        return np.concatenate([latent, self._rotate(kv[:, rank:], positions)], axis=1)

    def _rotate(self, x: Array, positions: Array) -> Array:
        """RoPE on interleaved pairs. Shapes: ``x [T, ..., R]``, ``positions [T]``."""
        angle = (positions[:, None] * self._frequencies).reshape(len(x), *(1,) * (x.ndim - 2), -1)
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._weights[f"{name}.weight"].T

    def _norm(self, x: Array, name: str) -> Array:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + np.float32(self.config.rms_eps)) * self._weights[f"{name}.weight"]


class Cells(Protocol):
    """Where the rows lie; ``StateMemory`` is one."""

    def write_cells(self, pages: Array, cells: Array, values: Array) -> None: ...

    def read_cells(self, pages: Array, num_layers: int, dtype: np.dtype[Any]) -> Array: ...


class DSparkDrafter(Drafter):
    """A draft model behind the engine's seam.

    Args:
        model: its arithmetic.
        page_tokens, dtype: of the engine's cells; rows are rounded to it.

    Attributes:
        states: the buffers that the caches need for it, after the target's; :meth:`attach` takes the memory.
    """

    def __init__(self, model: DSparkModel, page_tokens: int, dtype: str) -> None:
        self.model, self._page_tokens, self._dtype = model, page_tokens, numpy_dtype(dtype)
        shape, layers = ("PAGES", page_tokens, model.config.row_dim), model.config.num_layers
        names = [f"{PAGES_STATE}draft{n}" for n in range(layers)]
        self.states = {name: StateRecord(name, dtype, shape) for name in names}
        self._memory: Cells | None = None

    @classmethod
    def open(
        cls,
        directory: str | Path,
        manifest: Manifest,
        plans: Mapping[str, Plan],
        target: Checkpoint,
    ) -> DSparkDrafter:
        """A draft's checkpoint, checked against the package.

        Raises:
            K3Error: K3-G001, K3-G002, K3-G005 (config), K3-G004 (tensors), K3-G007 (another target's), K3-R014
                (the package does not give what it reads).
        """
        config = load_draft_config(directory)
        config.check_target(manifest.config, where=str(directory))
        _check_taps(config, plans, where=str(directory))
        files = CheckpointFiles(directory)
        weights = {name: _read(files, name, shape) for name, shape in draft_tensors(config).items()}
        stored = canonical_names(target.names())
        head = "model.embed_tokens" if manifest.config.tie_embeddings else "lm_head"
        model = DSparkModel(config, weights, target.read(stored[f"{head}.weight"]))
        return cls(model, manifest.page_tokens, manifest.storage_dtype)

    @property
    def most(self) -> int:
        return self.model.config.block

    def attach(self, memory: Cells) -> None:
        """Take the memory whose last layers are ``states``."""
        self._memory = memory

    def observe(
        self, taps: NDArray[np.float32], pages: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> None:
        assert self._memory is not None, "attach comes first"
        rows = self.model.rows(taps.reshape(len(taps), -1), positions)
        cells = positions % self._page_tokens
        self._memory.write_cells(pages, cells, rows.astype(self._dtype))

    def propose(self, known: Sequence[Known], most: Sequence[int]) -> list[list[int]]:
        anchors = np.array([one.tokens[-1] for one in known])
        drafts = self.model.propose(anchors, [self._context(one) for one in known])
        return [row[:count].tolist() for row, count in zip(drafts, most, strict=True)]

    def _context(self, known: Known) -> Array:
        """The rows of every token but the last, which the target has not seen."""
        assert self._memory is not None, "attach comes first"
        c, count = self.model.config, len(known.tokens) - 1
        pages = np.array(known.pages)[: cdiv(count, self._page_tokens)]
        found = self._memory.read_cells(pages, c.num_layers, self._dtype)
        rows = found[:, :, : self._page_tokens].swapaxes(1, 2).reshape(-1, c.num_layers, c.row_dim)
        return rows[:count].astype(np.float32)


def _check_taps(config: DraftConfig, plans: Mapping[str, Plan], *, where: str) -> None:
    for plan in plans.values():
        if plan.taps != config.target_layers:
            raise K3Error(
                "K3-R014",
                where=where,
                expected=f"a package that gives the sums after layers {list(config.target_layers)}",
                found=f"{list(plan.taps)} ({plan.phase} plan)",
                hint="compile the model again with --draft",
            )


def _read(files: CheckpointFiles, name: str, shape: tuple[int, ...]) -> Any:
    if name not in files:
        raise K3Error("K3-G004", where=str(files.directory), expected=name, found="no such tensor")
    found = files.read(name)
    if found.shape != shape:
        where = f"{files.directory}: {name}"
        raise K3Error("K3-G004", where=where, expected=str(shape), found=str(found.shape))
    return found
