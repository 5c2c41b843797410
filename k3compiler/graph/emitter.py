"""Writes graph ops: types from operands, locations from the current layer."""

from __future__ import annotations

from typing import Any

from k3compiler.dialects import k3
from k3compiler.dialects.k3.source import Source, reshape_source, tensor_source
from k3compiler.ir import Origin
from k3compiler.ir.dialect import element, emit, shape, tensor

ELEMENTS = {"float32": "f32", "bfloat16": "bf16"}


class Emitter:
    """Builds k3 ops at the current insertion point.

    Attributes:
        element: the package's element type, ``f32`` or ``bf16``.
        batch: the step's metadata value.
        layer: the layer that ops are made for, None outside the layers.
    """

    def __init__(self, element_type: str, batch: Any) -> None:
        self.element, self.batch = element_type, batch
        self.layer: int | None = None

    @property
    def prefix(self) -> str:
        """Of this layer's checkpoint tensors."""
        assert self.layer is not None
        return f"model.layers.{self.layer}"

    def op(self, op_class: Any, operands: list[Any], results: list[Any], **attributes: Any) -> Any:
        """Any op of ours, at the current layer and its own equation."""
        origin = Origin(op_class.OPERATION_NAME, self.layer, op_class.EQUATION)
        return emit(op_class, operands, results, origin.location(), **attributes)

    def rows(self, columns: int, element_type: str | None = None) -> Any:
        """The type of one row a token."""
        return tensor(element_type or self.element, None, columns)

    def weight(
        self,
        name: str,
        *extents: int,
        element_type: str | None = None,
        source: Source | None = None,
    ) -> Any:
        """A parameter; ``name`` is the checkpoint tensor unless a source says otherwise."""
        kind = tensor(element_type or self.element, *extents)
        param = name.removeprefix("model.").removesuffix(".weight")
        return self.op(
            k3.Weight, [], [kind], param=param, source=source or tensor_source(name)
        ).value

    def row_weight(self, name: str, columns: int) -> Any:
        """A parameter stored as ``[1, columns]``, as ``[columns]``."""
        return self.weight(name, columns, source=reshape_source([columns], tensor_source(name)))

    def linear(self, x: Any, name: str, columns: int, element_type: str | None = None) -> Any:
        """``x Wᵀ`` with the checkpoint tensor ``name`` of ``columns`` rows."""
        weight = self.weight(f"{name}.weight", columns, shape(x)[-1] or 0)
        kind = self.rows(columns, element_type)
        return self.op(k3.Linear, [x, weight, None], [kind], epilogue="none").y

    def rms_norm(self, x: Any, name: str, eps: float) -> Any:
        """RMSNorm with the checkpoint tensor ``name``."""
        weight = self.weight(f"{name}.weight", shape(x)[-1] or 0)
        return self.op(k3.RmsNorm, [x, weight], [x.type], eps=eps).y

    def add(self, a: Any, b: Any) -> Any:
        return self.op(k3.Add, [a, b], [a.type]).y

    def sigmoid(self, x: Any) -> Any:
        """In f32, whatever x is."""
        return self.op(k3.Sigmoid, [x], [tensor("f32", *shape(x))]).y

    def columns(self, x: Any, *widths: int) -> list[Any]:
        """Columns of x, in parts."""
        kinds = [self.rows(width, element(x)) for width in widths]
        offsets = [sum(widths[:i]) for i in range(len(widths))]
        cuts = zip(kinds, offsets, strict=True)
        return [self.op(k3.Columns, [x], [kind], offset=offset).y for kind, offset in cuts]
