"""Has a package lay its packed expert weights out for the kernels whose form reads them so (package/shuffles.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from k3compiler.errors import K3Error
from k3compiler.package.manifest import KernelRecord, LaunchStep, ParamRecord, Plan
from k3compiler.package.shuffles import SHUFFLES, argument_layouts


def shuffled_params(
    params: Sequence[ParamRecord], plans: Sequence[Plan], kernels: Mapping[str, KernelRecord]
) -> tuple[ParamRecord, ...]:
    """The parameters with a ``shuffle`` around the sources of those that such kernels read.

    Raises:
        K3Error: ``K3-T002`` where kernels of two forms read one parameter.
    """
    wanted: dict[str, dict[str, str]] = {}
    for kernel, name, layout in _readers(plans, kernels):
        wanted.setdefault(name, {})[layout] = kernel
    laid: list[ParamRecord] = []
    for param in params:
        layouts = wanted.get(param.name, {"": ""})
        if len(layouts) > 1:
            raise _two_layouts(param.name, layouts)
        (layout,) = layouts
        laid.append(_laid(param, layout) if layout else param)
    return tuple(laid)


def _readers(
    plans: Sequence[Plan], kernels: Mapping[str, KernelRecord]
) -> Iterator[tuple[str, str, str]]:
    """(kernel, parameter, layout it reads it in or "") of every weight of every launch."""
    for plan in plans:
        for step in plan.steps:
            if not isinstance(step, LaunchStep):
                continue
            record = kernels[step.launch]
            layouts = argument_layouts(record)
            for argument, value in zip(record.args, step.args, strict=True):
                if value.startswith("w:"):
                    yield step.launch, value.removeprefix("w:"), layouts.get(argument.name, "")


def _laid(param: ParamRecord, layout: str) -> ParamRecord:
    shape = SHUFFLES[layout].shape(param.shape)
    return replace(param, shape=shape, source={"shuffle": layout, "of": param.source})


def _two_layouts(name: str, layouts: Mapping[str, str]) -> K3Error:
    readers = ", ".join(
        f"{kernel} ({layout or 'as stored'})" for layout, kernel in sorted(layouts.items())
    )
    return K3Error(
        "K3-T002",
        where=f"weights {name}",
        expected="one layout for all kernels that read them",
        found=readers,
        hint="give the schedule entries of both phases the same form",
    )
