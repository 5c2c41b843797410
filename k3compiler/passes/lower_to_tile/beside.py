"""Launches that need not wait for each other, as one where a target wants it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3compiler.ir.location import Origin
from k3compiler.package.expr import Expr
from k3compiler.passes.lower_to_tile.builder import PlanBuilder
from k3compiler.passes.lower_to_tile.refs import Ref

_GREATEST = ("num_warps", "num_stages")  # a program has what the part that needs most has


@dataclass(frozen=True, slots=True)
class Launch:
    """What :meth:`PlanBuilder.launch` takes."""

    origin: Origin
    family: str
    dims: Mapping[str, Any]
    arguments: Mapping[str, Ref | str]


def launch_beside(
    plan: PlanBuilder, launches: Sequence[Launch], *, times: Expr | None = None
) -> None:
    """One launch of all, or of each, as the schedule of ``beside`` for the first of them says.

    In company a launch may have another schedule: ``company`` is how many there are.
    """
    first, company = launches[0], len(launches)
    most = plan.schedule("company", {"of": first.family}, plan.phase)[0].get("most", 1)
    if not 1 < company <= most:
        for one in launches:
            plan.launch(one.origin, one.family, one.dims, one.arguments, times=times)
        return
    made = [plan.schedule(o.family, {**o.dims, "company": company}, plan.phase) for o in launches]
    pairs = list(zip(launches, made, strict=True))
    parts = [[one.family, {**one.dims, **blocks}] for one, (blocks, _) in pairs]
    arguments = {
        f"{name}_{index}": value
        for index, one in enumerate(launches)
        for name, value in one.arguments.items()
    }
    options = _together([options for _, options in made])
    plan.launch(
        _origin(launches), "beside", {"parts": parts}, arguments, options=options, times=times
    )


def _origin(launches: Sequence[Launch]) -> Origin:
    """All ops' names and equations, each once."""
    origins = [one.origin for one in launches]
    names, equations = (
        dict.fromkeys(o.op for o in origins),
        dict.fromkeys(o.equation for o in origins),
    )
    return origins[0].renamed("+".join(names), ",".join(equations))


def _together(options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Launch options of all parts: of warps and stages the most, of others those on which they agree."""
    first, *others = options
    agreed = {k: v for k, v in first.items() if all(o.get(k) == v for o in others)}
    return agreed | {k: max(o[k] for o in options) for k in _GREATEST if k in first}
