"""Parameters, embedding, linear maps, and the way out: rows, logits, tokens."""

from collections.abc import Iterator, Sequence

from k3compiler.dialects.k3.dialect import FLOATS, Batch, K3Op
from k3compiler.dialects.k3.source import source_faults
from k3compiler.ir.dialect import (
    DictAttr,
    Fault,
    IntegerAttr,
    Operand,
    Result,
    StringAttr,
    Tensor,
    element,
    one_of,
    plain,
    ranked,
    same,
    shape,
    shaped,
    typed,
    want,
)

EPILOGUES = ("none", "add")


class Weight(K3Op, name="weight"):
    """A parameter, by its name in the package and its source in the checkpoint.

    ``source`` is the SOURCE of ``docs/package.md`` (tensor, concat, stack, reshape, transpose, pad);
    stacked experts are one op. The result's element type is the one the loader converts to; i8 are bytes.

    Shapes: value any static shape, f32, bf16 or i8.
    """

    EQUATION = "10"
    param: StringAttr
    source: DictAttr
    value: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield typed("value", self.value, *FLOATS, "i8")
        if None in shape(self.value):
            yield f"value: expected a static shape, found {self.value.type}"
        yield from source_faults(plain(self.source))


class Embed(K3Op, name="embed"):
    """Rows of the embedding table, not scaled.

    ``first_row`` (optional, an expression in ``rank``): the table holds the rows from there on; tokens
    outside give zeros, so that the sum over the ranks is the embedding.

    Shapes: tokens [T] i32, table [V, D] -> y [T, D].
    """

    OPTIONAL = ("first_row",)
    EQUATION = "7.1"
    tokens: Operand[Tensor]
    table: Operand[Tensor]
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield shaped("tokens", self.tokens, None)
        yield typed("tokens", self.tokens, "i32")
        yield ranked("table", self.table, 2)
        yield typed("table", self.table, *FLOATS)
        yield shaped("y", self.y, None, shape(self.table)[-1])


class Linear(K3Op, name="linear"):
    """``y = x Wᵀ``, accumulated in fp32; with epilogue ``add``, ``y = x Wᵀ + residual``.

    The result's element type is the output format (logits are f32).

    Shapes: x [T, in], weight [out, in], residual [T, out] -> y [T, out].
    """

    EQUATION = "notation"
    x: Operand[Tensor]
    weight: Operand[Tensor]
    epilogue: StringAttr
    y: Result[Tensor]
    residual: Operand[Tensor] | None = None

    def faults(self) -> Iterator[Fault]:
        yield ranked("x", self.x, 2)
        yield ranked("weight", self.weight, 2)
        yield typed("x", self.x, *FLOATS)
        yield typed("y", self.y, *FLOATS)
        yield want("x element type", self.weight.type.element_type, self.x.type.element_type)
        yield want("columns of x", shape(self.weight)[-1], shape(self.x)[-1])
        yield shaped("y", self.y, None, shape(self.weight)[0])
        yield one_of("epilogue", EPILOGUES, self.epilogue.value)
        yield want("residual given", self.epilogue.value == "add", self.residual is not None)
        if self.residual is not None:
            yield shaped("residual", self.residual, None, shape(self.weight)[0])


class GatherRows(K3Op, name="gather_rows"):
    """The rows whose logits are wanted (``logit_rows`` of the batch).

    Shapes: x [T, D] -> y [R, D].
    """

    EQUATION = "7.1"
    x: Operand[Tensor]
    batch: Operand[Batch]
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("x", self.x, 2)
        yield same("y", self.x, self.y)


class Argmax(K3Op, name="argmax"):
    """The index of each row's largest logit, the lowest one on a tie.

    Shapes: logits [R, V] f32 -> token [R] i32.
    """

    EQUATION = "7.1"
    logits: Operand[Tensor]
    token: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("logits", self.logits, 2)
        yield typed("logits", self.logits, "f32")
        yield shaped("token", self.token, None)
        yield typed("token", self.token, "i32")


class Sample(K3Op, name="sample"):
    """The next token of each row by the batch's temperature, top-k, top-p and seed; greedy at temperature 0.

    Shapes: logits [R, V] f32 -> token [R] i32.
    """

    EQUATION = "7.1"
    logits: Operand[Tensor]
    batch: Operand[Batch]
    token: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("logits", self.logits, 2)
        yield typed("logits", self.logits, "f32")
        yield shaped("token", self.token, None)
        yield typed("token", self.token, "i32")


class StepMetadata(K3Op, name="step_metadata"):
    """The step's tokens and metadata, made on the device from what the host packed; the first op of a model.

    The identity in meaning: it says where in a plan the arrays of the batch come into being.

    Shapes: tokens [T] i32 -> new_tokens [T] i32.
    """

    EQUATION = "notation"
    tokens: Operand[Tensor]
    batch: Operand[Batch]
    page_tokens: IntegerAttr
    new_tokens: Result[Tensor]
    new_batch: Result[Batch]

    def faults(self) -> Iterator[Fault]:
        yield shaped("tokens", self.tokens, None)
        yield typed("tokens", self.tokens, "i32")
        yield same("new_tokens", self.tokens, self.new_tokens)
        if self.page_tokens.value < 1:
            yield f"page_tokens: expected at least 1, found {self.page_tokens.value}"


class Columns(K3Op, name="columns"):
    """Columns ``offset .. offset + width`` of x; a view, no kernel.

    Shapes: x [T, D] -> y [T, width].
    """

    EQUATION = "notation"
    x: Operand[Tensor]
    offset: IntegerAttr
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        yield ranked("x", self.x, 2)
        yield ranked("y", self.y, 2)
        offset, width, columns = self.offset.value, shape(self.y)[-1], shape(self.x)[-1]
        if width is None or columns is None or not 0 <= offset <= columns - width:
            yield f"offset: expected {width} columns inside {columns}, found offset {offset}"
        yield typed("y", self.y, element(self.x))


class Concat(K3Op, name="concat"):
    """Columns of several tensors of one type beside each other. Only on the graph level: fusion makes it a view.

    Shapes: parts [T, n_i] -> y [T, sum(n_i)].
    """

    EQUATION = "notation"
    parts: Sequence[Operand[Tensor]]
    y: Result[Tensor]

    def faults(self) -> Iterator[Fault]:
        widths = [shape(part)[-1] for part in self.parts]
        yield shaped("y", self.y, None, sum(w for w in widths if w is not None))
        for part in self.parts:
            yield want("part element type", self.y.type.element_type, part.type.element_type)
            yield ranked("part", part, 2)
