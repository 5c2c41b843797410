"""Whether the fake device's memory holds what the bookkeeping says (A17: states, cells, copies)."""

from __future__ import annotations

import numpy as np

from k3compiler.runtime.cache.unit_keys import Media
from k3compiler.runtime.simulate import fake_model as model
from k3compiler.runtime.simulate.fake_model import Words
from k3compiler.runtime.simulate.run import Simulation


def check_contents(sim: Simulation) -> None:
    """Assert that every state and cell that anybody could read is right; between steps."""
    sim.device.run_ops()
    _check_nodes(sim)
    _check_rows(sim)


def _check_nodes(sim: Simulation) -> None:
    cache, device, index = sim.cache, sim.device, sim.cache.index
    states: dict[int, int] = dict.fromkeys(index.roots.values(), 0)
    adapters = {root: namespace[1] for namespace, root in index.roots.items()}
    nodes = index.all_nodes()
    for node in nodes[np.argsort(index.depth[nodes], kind="stable")].tolist():
        parent, depth = int(index.parent[node]), int(index.depth[node])
        adapters[node] = adapters[parent]
        start = (depth - 1) * cache.unit
        media = [Media(m, start + a, start + b) for m, a, b in index.media_of(node)]
        words = model.words_of(index.tokens[node], start, adapters[node], media)
        states[node] = model.advance(states[parent], words)
        cells = model.cells_of(words, start)
        if index.on_device[node]:
            table = np.zeros(depth * cache.unit, np.int64)
            columns = index.page_indices(index.depth[[node]])[0]
            table[columns[columns >= 0]] = index.pages[node][columns >= 0]
            places, inside = cache._cell_places(table, depth)
            _same(device.cells[places, inside], cells, f"cells of node {node}")
        if index.cells_host[node] >= 0:
            _same(device.host[int(index.cells_host[node])], cells, f"host cells of node {node}")
        if index.state[node] >= 0:
            found = device.state_of(int(index.state[node]))
            assert found == states[node], f"checkpoint after {depth * cache.unit} tokens is wrong"
        if index.state_host[node] >= 0:
            host = int(device.host[int(index.state_host[node])][0])
            assert host == states[node], f"host state of node {node} is wrong"


def _check_rows(sim: Simulation) -> None:
    cache, device = sim.cache, sim.device
    for row in np.flatnonzero(cache.rows.is_open).tolist():
        job = sim.scheduler.jobs[row]
        assert job is not None, f"row {row} is open without a job"
        context = int(cache.rows.context[row])
        tokens = np.concatenate([job.prompt, sim.scheduler.outputs(row)])[:context]
        words = model.words_of(tokens, 0, job.namespace[1], job.media)
        _same(device.cells_of(row, context), model.cells_of(words, 0), f"cells of {job.name}")
        if sim.scheduler.limits.width == 1:  # rejected drafts leave dead cells behind
            room = int(cache.rows.num_pages[row]) * cache.shape.page_tokens
            tail = device.cells_of(row, room)[context:]
            _same(tail, np.zeros_like(tail), f"cells past the end of {job.name}")
        if context:
            found = device.state_of(int(cache.rows.slot[row]))
            assert found == model.advance(0, words), f"state of {job.name} is wrong"
        at = int(cache.rows.rolled_at[row])
        if cache.rows.rolled[row] and at > 0:
            found = device.state_of(int(cache.rows.rolled[row]))
            assert found == model.advance(0, words[:at]), f"rolled state of {job.name} is wrong"


def _same(found: Words, expected: Words, what: str) -> None:
    assert np.array_equal(found, expected), f"{what} are wrong"
