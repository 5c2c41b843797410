"""Tensor and expert parallelism: slices of every parameter, and every collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from k3compiler.dialects import comm, k3
from k3compiler.errors import K3Error
from k3compiler.ir import ir
from k3compiler.ir.dialect import attribute, element, plain, shape, tensor
from k3compiler.passes.base import Pass
from k3compiler.passes.match import build, has_one_use, made_by, maker
from k3compiler.passes.module import model_function
from k3compiler.passes.shards import CHOICES, Shard, last_word, shard_of, sliced
from k3compiler.passes.shards import Rule as ShardRule


@dataclass(frozen=True, slots=True)
class Partition(Pass):
    """One rank's share of the model; the same module for every rank, slices are expressions in ``rank``.

    From: 1. To: 1. First of all passes: the others then see the smaller shapes.

    Heads, FFN widths and the vocabulary are cut over ``tp`` ranks (a vocabulary that does not divide stays
    whole). Experts are cut over ``ep`` of them; where ep < tp, each expert's width is cut over the tp/ep ranks
    that share it. Sums come after o_proj, the down projections, the embedding, and the routed experts: the
    latent's sum stands before its norm. Logits are gathered.

    ``shard`` names matrices that could stay whole and are cut too, joined by ``+`` (``passes/sharding.py`` chooses
    them): rows are gathered; latent_up takes this rank's columns of the normed latent, and its sum is one with the
    shared experts'.

    ``k3.linear(x, o_proj)`` becomes ``comm.all_reduce(k3.linear(x, o_proj[:, rank]))``.
    """

    name: ClassVar[str] = "partition"
    to_level: ClassVar[int] = 1
    tp: int = 1
    ep: int | None = None
    shard: str = ""

    @property
    def expert_ranks(self) -> int:
        """Ranks that the experts are cut over."""
        return self.tp if self.ep is None else self.ep

    def run(self, module: Any) -> None:
        if self.tp < 1 or self.expert_ranks < 1 or self.tp % self.expert_ranks:
            raise K3Error(
                "K3-P004",
                where=f"tp={self.tp}, ep={self.expert_ranks}",
                expected="ep divides tp",
                found=f"{self.tp} % {self.expert_ranks} != 0",
            )
        unknown = sorted(set(self.shard.split("+")) - {"", *CHOICES})
        if unknown:
            raise K3Error(
                "K3-P002",
                where="partition{shard}",
                expected="+".join(CHOICES),
                found=unknown[0],
            )
        if self.tp == 1:
            return
        function = model_function(module)
        _refuse_a_second_time(function)
        with module.context, ir.Location.unknown():
            self._check_heads(function)
            chosen = dict(CHOICES[name] for name in self.shard.split("+") if name)
            _Worker(self.tp, self.expert_ranks, chosen).run(function)

    def _check_heads(self, function: Any) -> None:
        for op in function.entry_block.operations:
            if isinstance(op, k3.KdaRecurrence | k3.MlaAttention):
                kda = isinstance(op, k3.KdaRecurrence)
                heads = (shape(op.state)[1] or 0) if kda else op.num_heads.value
                if heads % self.tp:
                    raise K3Error(
                        "K3-P004",
                        where=f"{'KDA' if kda else 'MLA'} heads over tp={self.tp}",
                        expected=f"a head count that {self.tp} divides",
                        found=str(heads),
                        hint="choose a tp that divides the head counts",
                    )


def _refuse_a_second_time(function: Any) -> None:
    for op in function.entry_block.operations:
        if isinstance(op, comm.AllReduce | comm.AllGather | comm.ReduceScatter):
            raise K3Error(
                "K3-P003",
                where="partition",
                expected="a module that is not partitioned yet",
                found=f"a {op.operation.name}",
            )


class _Worker:
    """Goes through the ops in order: parameters are sliced, types follow, sums are placed."""

    def __init__(self, tp: int, ep: int, chosen: dict[str, ShardRule]) -> None:
        self.tp, self.ep, self.chosen = tp, ep, chosen
        self.narrowed: set[Any] = set()  # values whose columns are this rank's share
        self.following: Any = None  # the op behind the one at hand: there its sum goes

    def run(self, function: Any) -> None:
        self._cut_states(function)
        ops = list(function.entry_block.operations)
        for op, self.following in pairwise(ops):
            rule = RULES.get(type(op))
            if rule is not None:
                rule(self, op)
        _retype(function)

    def _cut_states(self, function: Any) -> None:
        for value in function.entry_block.arguments:
            for use in value.uses:
                user = use.owner.opview
                if isinstance(user, k3.KdaRecurrence) and value == user.state:
                    slots, heads, *dims = shape(value)
                    value.set_type(tensor("f32", slots, (heads or 0) // self.tp, *dims))
                elif isinstance(user, k3.ShortConv) and value == user.state:
                    slots, taps, channels = shape(value)
                    width = (channels or 0) // self.tp
                    value.set_type(tensor(element(value), slots, taps, width))

    # -- rules, one a class of ops -----------------------------------------------------------
    def weight(self, op: Any) -> None:
        shard = shard_of(op, self.tp, self.ep, self.chosen)
        if shard is not None:
            op.operation.attributes["source"] = attribute(sliced(plain(op.source), shard))
            op.value.set_type(tensor(element(op.value), *shard.extents))

    def embed(self, op: Any) -> None:
        shard = self._row_shard(op.table)
        if shard is not None:
            op.operation.attributes["first_row"] = attribute(shard.first(0))
            self._sum(op, op.y)

    def linear(self, op: Any) -> None:
        """Rows cut: narrower result, gathered where all ranks need all of it. Columns cut: a partial sum."""
        rows, columns = shape(op.weight)
        if rows != shape(op.y)[-1]:
            self._narrow(op.y, rows)
            if _is_head(op) or last_word(maker(op.weight, k3.Weight)) in self.chosen:
                self._gather(op)
        elif columns is not None and self._is_cut(op.weight):
            if shape(op.x)[-1] != columns:
                self._take_part(op.x)
            self._sum(op, op.y)

    def _take_part(self, value: Any) -> None:
        """Of a norm's result, only this rank's columns."""
        norm = made_by(value, k3.RmsNorm)
        assert norm is not None and has_one_use(value), (
            "a norm stands before a map with cut columns"
        )
        norm.operation.attributes["part"] = attribute("rank")
        self._narrow(value, (shape(value)[-1] or 0) // self.tp)

    def add(self, op: Any) -> None:
        """The sum of two sums over the ranks is one."""
        sums = [made_by(value, comm.AllReduce) for value in (op.a, op.b)]
        if any(s is None or not has_one_use(s.y) for s in sums):
            return
        for index, total in enumerate(sums):
            assert total is not None
            op.operation.operands[index] = total.x
            total.operation.erase()
        self._sum(op, op.y)

    def _is_cut(self, weight: Any) -> bool:
        made = made_by(weight, k3.Weight)
        return made is not None and "rank" in str(made.source)

    def _row_shard(self, table: Any) -> Shard | None:
        made = made_by(table, k3.Weight)
        if made is None or not self._is_cut(table):
            return None
        rows = shape(table)[0] or 0
        return Shard((rows, shape(table)[1] or 0), {0: (f"rank*{rows}", rows)})

    def columns(self, op: Any) -> None:
        """Every part of a narrowed tensor narrows alike."""
        if op.x in self.narrowed:
            op.operation.attributes["offset"] = attribute(op.offset.value // self.tp)
            self._narrow(op.y, (shape(op.y)[-1] or 0) // self.tp)

    def concat(self, op: Any) -> None:
        if all(part in self.narrowed for part in op.parts):
            self._narrow(op.y, sum(shape(part)[-1] or 0 for part in op.parts))

    def follow(self, op: Any) -> None:
        """Pointwise ops: as wide as their first operand; heads are counted anew."""
        source = op.operation.operands[0]
        if source in self.narrowed:
            self._count_heads(op)
            self._narrow(op.operation.results[0], shape(source)[-1])

    def short_conv(self, op: Any) -> None:
        self._narrow(op.y, shape(op.u)[-1])
        op.new_state.set_type(op.state.type)

    def recurrence(self, op: Any) -> None:
        self._narrow(op.o, shape(op.v)[-1])
        op.new_state.set_type(op.state.type)

    def attention(self, op: Any) -> None:
        self._count_heads(op)
        self._narrow(op.o, op.num_heads.value * op.v_dim.value)

    def experts(self, op: Any) -> None:
        count = shape(op.w1)[0] or 0
        if self.ep > 1:
            first = f"rank//{self.tp // self.ep}*{count}" if self.ep < self.tp else f"rank*{count}"
            op.operation.attributes["first_expert"] = attribute(first)
        self._sum(op, op.r)

    # -- building blocks ---------------------------------------------------------------------
    def _narrow(self, value: Any, columns: int | None) -> None:
        value.set_type(tensor(element(value), *shape(value)[:-1], columns))
        self.narrowed.add(value)

    def _count_heads(self, op: Any) -> None:
        if "num_heads" in op.operation.attributes:
            op.operation.attributes["num_heads"] = attribute(op.num_heads.value // self.tp)

    def _sum(self, op: Any, value: Any) -> None:
        """The sum over the ranks, right behind its summand."""
        with ir.InsertionPoint(self.following):
            total = build(comm.AllReduce, op, [value], [value.type], group="tp")
        value.replace_all_uses_except(total.y, total.operation)

    def _gather(self, op: Any) -> None:
        width = (shape(op.y)[-1] or 0) * self.tp
        with ir.InsertionPoint(self.following):
            kind = tensor(element(op.y), None, width)
            whole = build(comm.AllGather, op, [op.y], [kind], group="tp", ranks=self.tp)
        op.y.replace_all_uses_except(whole.y, whole.operation)
        self.narrowed.discard(op.y)


def _is_head(op: Any) -> bool:
    """Whether a map makes the logits: they are sampled from."""
    return any(isinstance(u.owner.opview, k3.Sample | k3.Argmax) for u in op.y.uses)


def _retype(function: Any) -> None:
    """The function's type from its block and its return."""
    block = function.entry_block
    last = list(block.operations)[-1]
    kind = ir.FunctionType.get(
        [a.type for a in block.arguments], [v.type for v in last.operation.operands]
    )
    function.operation.attributes["function_type"] = ir.TypeAttr.get(kind)


Rule = Callable[[_Worker, Any], None]
RULES: dict[Any, Rule] = {
    k3.Weight: _Worker.weight,
    k3.Embed: _Worker.embed,
    k3.Linear: _Worker.linear,
    k3.Columns: _Worker.columns,
    k3.Concat: _Worker.concat,
    k3.ShortConv: _Worker.short_conv,
    k3.KdaRecurrence: _Worker.recurrence,
    k3.MlaAttention: _Worker.attention,
    k3.Experts: _Worker.experts,
    k3.Add: _Worker.add,
    **dict.fromkeys(
        (
            k3.Silu, k3.Sigmoid, k3.L2Norm, k3.KdaGate, k3.GatedRmsNorm, k3.MulSigmoid, k3.Situ, k3.SiluMul,
        ),
        _Worker.follow,
    ),
}  # fmt: skip
