"""From a model config to the level-1 module: one function, the model op by op."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from k3compiler.config import ModelConfig
from k3compiler.dialects import k3
from k3compiler.graph.emitter import ELEMENTS, Emitter
from k3compiler.graph.ffn import ffn
from k3compiler.graph.mixers import kda_mixer, mla_mixer
from k3compiler.ir import func, ir, new_context, verify_module
from k3compiler.ir.dialect import attribute, tensor
from k3compiler.package.manifest import tap_name

Named = list[tuple[str, Any]]


def build_graph(
    config: ModelConfig,
    dtype: Literal["float32", "bfloat16"] = "float32",
    *,
    page_tokens: int = 64,
    taps: Sequence[int] = (),
    context: Any | None = None,
) -> Any:
    """The graph of a model, verified.

    ``func.func @model`` takes ``tokens [T] i32``, the step's ``!k3.batch``, then every state buffer
    (``kda_state.<l>``, ``kda_conv.<l>``, ``mla_cache.<l>``, in order of layers); it returns
    ``logits [R, V] f32``, ``next_token [R] i32``, ``tap.<l> [T, D]`` for the layers tapped, then the
    new states in the same order. Arguments and results carry their names as ``k3.name``.

    Args:
        dtype: element type of activations, matrices, conv states and MLA pages.
        page_tokens: tokens of one MLA page.
        taps: layers whose running sum (after the layer) a draft model reads.
    """
    with context or new_context(), ir.Location.name("model"):
        module = ir.Module.create()
        module.operation.attributes["k3.config"] = attribute(
            json.dumps(config.to_dict(), sort_keys=True)
        )
        module.operation.attributes["k3.dtype"] = attribute(dtype)
        states = _states(config, ELEMENTS[dtype], page_tokens)
        with ir.InsertionPoint(module.body):
            _model_function(config, ELEMENTS[dtype], states, page_tokens, taps)
    verify_module(module, where=config.name)
    return module


def _states(config: ModelConfig, element_type: str, page_tokens: int) -> Named:
    """Name and type of every state buffer (docs/package.md, state buffers)."""
    kda, mla = config.kda, config.mla
    channels = 3 * kda.num_heads * kda.head_dim
    found: Named = []
    for layer in range(config.num_layers):
        if config.is_mla(layer):
            row = mla.kv_lora_rank + mla.rope_dim
            found.append((f"mla_cache.{layer}", tensor(element_type, None, page_tokens, row)))
            continue
        state = tensor("f32", None, kda.num_heads, kda.head_dim, kda.head_dim)
        found.append((f"kda_state.{layer}", state))
        conv = tensor(element_type, None, kda.conv_size - 1, channels)
        found.append((f"kda_conv.{layer}", conv))
    return found


def _model_function(
    config: ModelConfig,
    element_type: str,
    states: Named,
    page_tokens: int,
    taps: Sequence[int],
) -> None:
    inputs: Named = [
        ("tokens", tensor("i32", None)),
        ("batch", k3.Batch.get()),
        *states,
    ]
    outputs: Named = [
        ("logits", tensor("f32", None, config.vocab_size)),
        ("next_token", tensor("i32", None)),
        *((tap_name(layer), tensor(element_type, None, config.hidden_dim)) for layer in taps),
        *states,
    ]
    kind = ir.FunctionType.get([t for _, t in inputs], [t for _, t in outputs])
    model = func.FuncOp("model", kind)
    model.arg_attrs = [_named(name) for name, _ in inputs]
    model.attributes["res_attrs"] = ir.ArrayAttr.get([_named(name) for name, _ in outputs])
    block = model.add_entry_block()
    arguments = {name: value for (name, _), value in zip(inputs, block.arguments, strict=True)}
    with ir.InsertionPoint(block):
        results = _Model(config, element_type, arguments, page_tokens).run()
        func.ReturnOp([results[name] for name, _ in outputs])


def _named(name: str) -> Any:
    return ir.DictAttr.get({"k3.name": ir.StringAttr.get(name)})


class _Model:
    """The story of one forward pass; ``values`` maps state names to their current values."""

    def __init__(
        self, config: ModelConfig, element_type: str, arguments: dict[str, Any], page_tokens: int
    ) -> None:
        self.config = config
        self.values = dict(arguments)
        self.e = Emitter(element_type, arguments["batch"])
        made = self.e.op(
            k3.StepMetadata,
            [arguments["tokens"], self.e.batch],
            [arguments["tokens"].type, self.e.batch.type],
            page_tokens=page_tokens,
        )
        self.values["tokens"], self.e.batch = made.new_tokens, made.new_batch

    def run(self) -> dict[str, Any]:
        c, e = self.config, self.e
        table = e.weight("model.embed_tokens.weight", c.vocab_size, c.hidden_dim)
        x = e.op(k3.Embed, [self.values["tokens"], table], [e.rows(c.hidden_dim)]).y
        plain = c.attn_res_block is None
        hidden = self._plain_residuals(x) if plain else self._attention_residuals(x)
        e.layer = None
        y = e.rms_norm(hidden, "model.norm", c.rms_eps)
        rows = e.op(k3.GatherRows, [y, e.batch], [y.type]).y
        head = "model.embed_tokens" if c.tie_embeddings else "lm_head"
        logits = e.linear(rows, head, c.vocab_size, "f32")
        token = e.op(k3.Sample, [logits, e.batch], [tensor("i32", None)]).token
        return self.values | {"logits": logits, "next_token": token}

    def _plain_residuals(self, x: Any) -> Any:
        for layer in range(self.config.num_layers):
            self.e.layer = layer
            x = self.e.add(x, self._mixer(x, layer))
            x = self.e.add(x, self._ffn(x, layer))
            self.values[tap_name(layer)] = x
        return x

    def _attention_residuals(self, x: Any) -> Any:
        """The state machine of spec 2.4: a running sum, assigned anew where a block starts, and snapshots."""
        block = self.config.attn_res_block
        assert block is not None
        running, snapshots = x, list[Any]()
        for layer in range(self.config.num_layers):
            self.e.layer = layer
            h = self._mix(f"{self.e.prefix}.self_attention_res", snapshots, running)
            starts_block = layer % block == 0
            if starts_block:
                snapshots = [*snapshots, running]
            a = self._mixer(h, layer)
            running = a if starts_block else self.e.add(running, a)
            h = self._mix(f"{self.e.prefix}.mlp_res", snapshots, running)
            running = self.e.add(running, self._ffn(h, layer))
            self.values[tap_name(layer)] = running
        self.e.layer = None
        return self._mix("model.output_attn_res", snapshots, running)

    def _mix(self, site: str, snapshots: list[Any], running: Any) -> Any:
        if not snapshots:
            return running
        e, dim = self.e, self.config.hidden_dim
        norm = e.weight(f"{site}_norm.weight", dim)
        query = e.row_weight(f"{site}_proj.weight", dim)
        candidates = [*snapshots, running]
        eps = self.config.rms_eps
        return e.op(k3.AttnResMix, [norm, query, candidates], [running.type], eps=eps).y

    def _mixer(self, h: Any, layer: int) -> Any:
        e, values = self.e, self.values
        x = e.rms_norm(h, f"{e.prefix}.input_layernorm", self.config.rms_eps)
        if self.config.is_mla(layer):
            cache = f"mla_cache.{layer}"
            y, values[cache] = mla_mixer(e, self.config, x, values[cache])
            return y
        conv, state = f"kda_conv.{layer}", f"kda_state.{layer}"
        mixed = kda_mixer(e, self.config, x, values[conv], values[state])
        y, values[conv], values[state] = mixed
        return y

    def _ffn(self, h: Any, layer: int) -> Any:
        y = self.e.rms_norm(h, f"{self.e.prefix}.post_attention_layernorm", self.config.rms_eps)
        return ffn(self.e, self.config, y, layer)
