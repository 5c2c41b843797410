"""quantization_config: packed MXFP4 experts, or nothing (spec 1.3)."""

from __future__ import annotations

from typing import Literal

from k3compiler.config import MX_GROUP
from k3compiler.graph.config_keys import ConfigKeys

FORMAT = "mxfp4-pack-quantized"
OBSERVERS = ("minmax", "static_minmax", "memoryless_minmax", "mse")


def read_expert_format(keys: ConfigKeys) -> Literal["mxfp4", "plain"]:
    """Read the object if it is there; what it does not say is decided by tensor names.

    Raises:
        K3Error K3-G001, K3-G002, naming the key.
    """
    if "quantization_config" not in keys:
        keys.ignore("quantization_config")
        return "plain"
    quant = keys.take_object("quantization_config")
    quant.take_choice("quant_method", ("compressed-tensors",))
    quant.take_choice("format", (FORMAT,))
    quant.take_choice("quantization_status", ("compressed",), "compressed")
    # Module patterns: the shipped tensors go beyond them, so names decide (spec 1.3).
    quant.take_strings("ignore")
    quant.ignore("version", "global_compression_ratio")
    for key in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        if quant.take(key):
            quant.refuse(key, "null or empty")
    _read_groups(quant.take_object("config_groups"), quant)
    quant.finish()
    return "mxfp4"


def _read_groups(groups: ConfigKeys, quant: ConfigKeys) -> None:
    if "group_0" not in groups:
        quant.refuse("config_groups", "one group, group_0")
    group = groups.take_object("group_0")
    group.take_choice("format", (FORMAT,), FORMAT)
    group.take_choice("targets", (["Linear"],))
    for key in ("input_activations", "output_activations"):
        if group.take(key) is not None:
            group.refuse(key, "null (the checkpoint is weight-only)")
    _read_weights(group.take_object("weights"))
    group.finish()
    groups.finish()


def _read_weights(weights: ConfigKeys) -> None:
    weights.take_choice("num_bits", (4,))
    weights.take_choice("type", ("float",))
    weights.take_choice("strategy", ("group",))
    weights.take_choice("group_size", (MX_GROUP,))
    weights.take_choice("symmetric", (True,), True)
    weights.take_choice("dynamic", (False,), False)
    weights.take_choice("scale_dtype", ("uint8", "torch.uint8"), "uint8")
    weights.take_choice("observer", OBSERVERS, "minmax")  # how the scales were found
    weights.ignore("observer_kwargs")
    for key in ("zp_dtype", "zero_point", "actorder", "block_structure"):
        if weights.take(key) is not None:
            weights.refuse(key, "null")
    weights.finish()
