"""``report.html``: a package on one self-contained page, with its plans drawn.

Deterministic text from the records alone: no times, no host paths, no script, no outside resource.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from k3compiler.package.manifest import (
    BufferRecord,
    CallStep,
    CollectiveStep,
    LaunchStep,
    Manifest,
    Plan,
    Step,
)
from k3compiler.package.report_timeline import draw_timelines
from k3compiler.package.summary import (
    DEFAULT_POINTS,
    KERNEL_HEADS,
    LayerGroup,
    Point,
    format_count,
    format_layers,
    kernel_rows,
    layer_groups,
    plan_symbols,
    row_cells,
    step_name,
    storage_bytes,
)
from k3compiler.package.timeline import Clock

_BOX_W, _BOX_H, _GAP = 98, 34, 6
_ROW_H, _LIFE_W, _LIFE_H = 62, 1208, 10
_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:24px auto;max-width:1360px;padding:0 16px;color:#1b1f24;background:#fff}
h1{font-size:22px;margin:0 0 4px}h2{font-size:17px;margin:28px 0 6px}h3{font-size:14px;margin:16px 0 4px}
table{border-collapse:collapse;font-size:12px;display:block;overflow-x:auto}
th,td{padding:3px 9px;border-bottom:1px solid #dde2e7;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}code{font-size:12px}
th{border-bottom:2px solid #9aa4ae;white-space:nowrap}tr:hover td{background:#f5f7f9}
.facts td:first-child{color:#57606a}p{max-width:80ch;color:#57606a;margin:4px 0}
svg{display:block;max-width:none}div.draw{overflow-x:auto;border:1px solid #dde2e7;padding:8px;margin:6px 0}
svg text{font:10px system-ui,sans-serif;fill:#1b1f24}
@media(prefers-color-scheme:dark){body{background:#14171a;color:#dfe3e7}th,td,div.draw{border-color:#333a41}
tr:hover td{background:#1d2226}p,.facts td:first-child{color:#9aa4ae}svg text.out{fill:#dfe3e7}}
"""
_HUES = {
    "k3": 210, "kda": 265, "mla": 150, "attn_res": 35, "moe": 345, "mx": 320, "comm": 0, "sampling": 185,
}  # fmt: skip


def render_report(
    manifest: Manifest,
    plans: Sequence[Plan],
    points: Mapping[str, Point] = DEFAULT_POINTS,
    clock: Clock | None = None,
) -> str:
    """The page as text: facts, then for each phase the kernels, the steps per layer, their times and the workspace.

    Args:
        manifest: of the package; its ``files`` and ``digest`` are not used, so it may be unsealed.
        plans: the phases to draw.
        points: where each phase's floors are evaluated.
        clock: what the decode step's timeline is made of; None leaves it out.
    """
    phases = "".join(_phase(manifest, plan, points[plan.phase], clock) for plan in plans)
    title = escape(f"{_model_name(manifest)} for {manifest.target.name}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n{_facts(manifest)}\n{phases}"
        "</body></html>\n"
    )


def _model_name(manifest: Manifest) -> str:
    return str(manifest.model.get("name", "model"))


def _facts(manifest: Manifest) -> str:
    model = manifest.model
    facts = {
        "model": f"{_model_name(manifest)}, {model.get('num_layers', '?')} layers, "
        f"hidden {model.get('hidden_dim', '?')}, vocabulary {model.get('vocab_size', '?')}",
        "target": f"{manifest.target.name} ({manifest.target.isa})",
        "formats": f"{manifest.dtype}, packed experts {manifest.moe}",
        "parallel": f"tensor {manifest.parallel.tp}, expert {manifest.parallel.ep}",
        "matrices": "; ".join(map(str, manifest.parallel.choices)) or "nothing to choose",
        "caches": f"pages of {manifest.page_tokens} tokens, kda chunks of {manifest.chunk_tokens}",
        "decode buckets": ", ".join(map(str, manifest.decode_buckets)),
        "kernels": str(len(manifest.kernels)),
        "made by": f"k3compiler {manifest.version}, schema {manifest.schema}",
        "model id": manifest.model_id[:16],
    }
    rows = "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in facts.items())
    return f'<table class="facts">{rows}</table>'


def _phase(manifest: Manifest, plan: Plan, point: Point, clock: Clock | None) -> str:
    symbols = plan_symbols(manifest, plan, point)
    where = f"{point.tokens} tokens, {point.seqs} sequences, {point.context} tokens of context each"
    workspace = format_count(storage_bytes(plan, symbols), "B")
    groups = "".join(_draw_group(group) for group in layer_groups(plan))
    times = ""
    if clock is not None and plan.phase == "decode":
        times = draw_timelines(manifest, plan, point, clock)
    return (
        f"<h2>{escape(plan.phase)}: {len(plan.steps)} steps</h2>\n"
        f"<p>Floors and sizes at {where}. A floor is what one launch must move and compute at least.</p>\n"
        f"{_kernel_table(manifest, plan, point)}\n"
        "<h3>Steps, layer by layer</h3>"
        "<p>Layers with the same ops are drawn once. Hover for kernel and arguments (of the first).</p>\n"
        f'<div class="draw">{groups}</div>\n{times}'
        f"<h3>Workspace: {workspace} in {len(plan.storage)} blocks</h3>"
        "<p>A row is a block of memory, a bar the buffer that lives in it from its first to its last step.</p>\n"
        f'<div class="draw">{_draw_lifetimes(plan)}</div>\n'
    )


def _kernel_table(manifest: Manifest, plan: Plan, point: Point) -> str:
    kinds = ["n" if is_number else "" for _, is_number in KERNEL_HEADS]
    rows = [row_cells(row) for row in kernel_rows(manifest, plan, point)]
    lines = [_table_row("th", kinds, [title for title, _ in KERNEL_HEADS])]
    lines += [_table_row("td", kinds, cells) for cells in rows]
    return "<table>" + "\n".join(lines) + "</table>"


def _table_row(tag: str, kinds: Sequence[str], cells: Sequence[str]) -> str:
    pairs = zip(kinds, cells, strict=True)
    return "<tr>" + "".join(f'<{tag} class="{k}">{escape(c)}</{tag}>' for k, c in pairs) + "</tr>"


def _draw_group(group: LayerGroup) -> str:
    """One row of boxes: the steps of a layer in launch order, second streams lower."""
    width = len(group.steps) * (_BOX_W + _GAP)
    boxes = "".join(_box(step, i * (_BOX_W + _GAP)) for i, step in enumerate(group.steps))
    count = f" ({len(group.layers)})" if len(group.layers) > 1 else ""
    return (
        f'<svg width="{max(width, 320)}" height="{_ROW_H}" role="img">'
        f'<text class="out" x="0" y="11">{escape(group.title)}{count}</text>{boxes}</svg>\n'
    )


def _box(step: Step, x: int) -> str:
    y = 16 + (6 if step.stream else 0)
    dialect, _, name = step.op.partition(".")
    fill = f"hsl({_HUES.get(dialect, 90)} 65% 84%)"
    dash = "" if isinstance(step, LaunchStep) else ' stroke-dasharray="3 2"'
    return (
        f"<g><title>{escape(_tooltip(step))}</title>"
        f'<rect x="{x}" y="{y}" width="{_BOX_W}" height="{_BOX_H}" rx="3" fill="{fill}" stroke="#57606a"{dash}/>'
        f'<text x="{x + 5}" y="{y + 14}">{escape(dialect)}</text>'
        f'<text x="{x + 5}" y="{y + 27}">{escape(_clip(name or dialect, 19))}</text></g>'
    )


def _tooltip(step: Step) -> str:
    lines = [f"{step.op}: {step_name(step)}", "arguments: " + ", ".join(step.args)]
    match step:
        case LaunchStep():
            lines.append("grid: " + " x ".join(str(size) for size in step.grid))
        case CollectiveStep():
            lines.append(f"{step.count} elements over {step.group}")
        case CallStep():
            pass
    waits = f", waits for {format_layers(step.waits)}" if step.waits else ""
    return "\n".join([*lines, f"stream {step.stream}{waits}"])


def _draw_lifetimes(plan: Plan) -> str:
    rows = {block.id: i for i, block in enumerate(plan.storage)}
    height = 16 + len(rows) * (_LIFE_H + 2)
    scale = _LIFE_W / max(len(plan.steps), 1)
    bars = "".join(
        _bar(buffer, 90 + buffer.first * scale, (buffer.last - buffer.first + 1) * scale, row)
        for buffer in plan.buffers
        if buffer.storage is not None and buffer.first is not None and buffer.last is not None
        for row in [rows[buffer.storage]]
    )
    names = "".join(
        f'<text class="out" x="0" y="{25 + i * (_LIFE_H + 2)}">{escape(_clip(str(block.bytes), 15))}</text>'
        for i, block in enumerate(plan.storage)
    )
    return (
        f'<svg width="{_LIFE_W + 96}" height="{height}" role="img">'
        f'<text class="out" x="90" y="10">step 0</text>'
        f'<text class="out" x="{_LIFE_W + 90}" y="10" text-anchor="end">step {len(plan.steps) - 1}</text>'
        f"{names}{bars}</svg>"
    )


def _bar(buffer: BufferRecord, x: float, width: float, row: int) -> str:
    shape = " x ".join(str(size) for size in buffer.shape)
    text = f"{buffer.name}: {buffer.dtype} [{shape}], steps {buffer.first}-{buffer.last}"
    hue = (sum(buffer.name.encode()) * 47) % 360
    return (
        f'<rect x="{x:.1f}" y="{16 + row * (_LIFE_H + 2)}" width="{max(width - 0.4, 0.6):.1f}" '
        f'height="{_LIFE_H}" fill="hsl({hue} 55% 68%)"><title>{escape(text)}</title></rect>'
    )


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
