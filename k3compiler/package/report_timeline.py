"""The report's timelines: a row of bars a branch, and the launches as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from k3compiler.package.manifest import LaunchStep, Manifest, Plan
from k3compiler.package.summary import LayerGroup, Point, layer_groups, step_name
from k3compiler.package.timeline import Clock, Slot, end_us, timeline

_WIDTH, _ROW_H, _TOP = 1208, 20, 16
_HEADS = ("step", "branch", "waits for", "op", "kernel", "begin", "floor", "µs", "")


def draw_timelines(manifest: Manifest, plan: Plan, point: Point, clock: Clock) -> str:
    """A section with the timeline of every kind of layer, and the length of the whole step."""
    slots = timeline(manifest, plan, point, clock)
    measured = sum(s.is_measured for s in slots)
    launches = sum(isinstance(s.step, LaunchStep) for s in slots)
    groups = "".join(_group(group, slots) for group in layer_groups(plan) if group.layers)
    return (
        f"<h3>Timeline: {launches} launches, {end_us(slots) / 1e3:.2f} ms</h3>"
        f"<p>{measured} launches as measured, the others estimated: the floor at the chip's rate and a small "
        "launch's own time. Branches run beside each other; that they share the memory's bandwidth is left out. "
        "Launches that are empty at this size are left out.</p>\n"
        f"{groups}"
    )


def _group(group: LayerGroup, slots: Sequence[Slot]) -> str:
    """The first layer of its kind."""
    mine = [slot for slot in slots if slot.step.layer == group.layers[0]]
    if not mine:
        return ""
    begin = min(slot.begin_us for slot in mine)
    length = max(end_us(mine) - begin, 1e-9)
    count = sum(isinstance(slot.step, LaunchStep) for slot in mine)
    rows = sorted({slot.step.stream for slot in mine})
    bars = "".join(_bar(slot, begin, length, rows.index(slot.step.stream)) for slot in mine)
    names = "".join(
        f'<text class="out" x="0" y="{_TOP + i * _ROW_H + 14}">{branch}</text>'
        for i, branch in enumerate(rows)
    )
    title = f"{group.title} ({len(group.layers)}): {count} launches, {length:.1f} µs"
    height = _TOP + len(rows) * _ROW_H + 2
    return (
        f'<div class="draw"><svg width="{_WIDTH + 30}" height="{height}" role="img">'
        f'<text class="out" x="0" y="11">{escape(title)}</text>{names}{bars}</svg>\n'
        f"<details><summary>launches of layer {group.layers[0]}</summary>{_table(mine, begin)}"
        "</details></div>\n"
    )


def _bar(slot: Slot, begin: float, length: float, row: int) -> str:
    scale = _WIDTH / length
    x, width = 24 + (slot.begin_us - begin) * scale, max(slot.us * scale - 0.5, 1.5)
    text = f"{slot.step.op}: {step_name(slot.step)}, {slot.us:.1f} µs (floor {slot.floor_us:.1f})"
    hue = (sum(slot.step.op.encode()) * 47) % 360
    return (
        f'<rect x="{x:.1f}" y="{_TOP + row * _ROW_H}" width="{width:.1f}" height="{_ROW_H - 3}" '
        f'fill="hsl({hue} 55% 68%)"><title>{escape(text)}</title></rect>'
    )


def _table(slots: Sequence[Slot], begin: float) -> str:
    head = "".join(f"<th>{name}</th>" for name in _HEADS)
    rows = "".join(f"<tr>{_cells(slot, begin)}</tr>\n" for slot in slots)
    return f"<table><tr>{head}</tr>\n{rows}</table>"


def _cells(slot: Slot, begin: float) -> str:
    step = slot.step
    cells = (
        str(slot.index),
        str(step.stream),
        ", ".join(map(str, step.waits)) or "-",
        step.op,
        step_name(step),
        f"{slot.begin_us - begin:.1f}",
        f"{slot.floor_us:.2f}",
        f"{slot.us:.1f}",
        "measured" if slot.is_measured else "estimated" if slot.us else "",
    )
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)
