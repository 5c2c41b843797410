"""``k3c simulate``: files in, events out, refusals by name; and what the fake model notices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3compiler.cli import main as cli
from k3compiler.errors import K3Error
from k3compiler.runtime.simulate.config import SimulateConfig, load_config, parse_config
from k3compiler.runtime.simulate.fake_model import cold_run, stream_tokens
from k3compiler.runtime.simulate.run import Simulation
from k3compiler.runtime.simulate.trace import load_trace, parse_request
from tests.runtime.simulate.runs import part, request

SUMMARY = (
    "steps", "computed_tokens", "reused_tokens", "wrong_outputs", "leaked_pages", "leaked_slots",
    "peak_mla_bytes", "peak_state_bytes", "waste_bytes", "step_us_median", "step_us_p99",
)  # fmt: skip


def k3c(*arguments: object) -> int:
    with pytest.raises(SystemExit) as leaving:
        cli.main([str(a) for a in arguments])
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_events_and_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"arena_bytes": 2000000000}')
    lines = [
        request("a", part("s", 700), max_tokens=5),
        request("b", {"tokens": [1, 2, 3]}, continue_of="a", max_tokens=3),
        request("c", part("s", 700), max_tokens=9, abort_step=4),
    ]
    trace, out = write_lines(tmp_path / "trace.jsonl", lines), tmp_path / "out.jsonl"
    assert k3c("simulate", "--config", config, "--trace", trace, "--out", out, "--check") == 0
    events = [json.loads(line) for line in out.read_text().splitlines()]
    assert all("event" in e and "step" in e for e in events)
    summary = events[-1]
    assert summary["event"] == "summary" and all(isinstance(summary[n], int) for n in SUMMARY)
    assert (summary["wrong_outputs"], summary["checked_outputs"]) == (0, 3)
    chunks = sum(e["tokens"] for e in events if e["event"] == "chunk")
    hits = sum(e["hit_tokens"] for e in events if e["event"] == "admitted")
    assert (summary["computed_tokens"], summary["reused_tokens"]) == (chunks, hits)
    finished = {e["id"]: e for e in events if e["event"] == "finished"}
    assert finished["a"]["output"] == cold_run(stream_tokens("s", 0, 700), 5).tolist()
    assert finished["c"]["reason"] == "abort"
    assert "reused_tokens" in capsys.readouterr().out


def test_ids_are_repeated_as_they_are() -> None:
    events: list[dict[str, Any]] = []
    lines = [{"id": 7, "prompt": [part("s", 9)], "max_tokens": 2}]
    lines += [{"id": "x", "continue_of": 7, "max_tokens": 1}]
    Simulation(parse_config({}), [parse_request(r) for r in lines], events.append).run()
    assert [e["id"] for e in events if e["event"] == "finished"] == [7, "x"]


def test_an_empty_trace_is_a_run_of_no_steps(tmp_path: Path) -> None:
    trace, out = write_lines(tmp_path / "trace.jsonl", []), tmp_path / "out.jsonl"
    assert k3c("simulate", "--trace", trace, "--out", out, "--check") == 0
    assert json.loads(out.read_text())["steps"] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "a JSON object"),
        ("{", "Expecting"),
        ('{"arena_byte": 1}', "did you mean arena_bytes?"),
        ('{"arena_bytes": 0}', "at least 1"),
        ('{"arena_bytes": "x"}', "an integer"),
        ('{"prefix_cache": 1}', "true or false"),
        ('{"match_unit_tokens": 96}', "a multiple of 64"),
        ('{"max_batched_tokens": 63}', "at least 64"),
        ('{"eviction": "fifo"}', "lru or value"),
        ('{"memory": "split"}', "unified or static"),
        ('{"retention": {"interval_tokens": 65}}', "a multiple of 64"),
        ('{"retention": {"prompt_ends": true}}', "did you mean prompt_end?"),
        ('{"speculative": {"width": 0}}', "at least 1"),
        ('{"speculative": {"width": 2, "accept": []}}', "at least 0"),
    ],
)
def test_bad_configs(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(K3Error, match="K3-R010") as caught:
        load_config(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"id": "a"'], "trace.jsonl:1"),
        (["3"], "a JSON object"),
        (['{"prompt": []}'], "an id"),
        (['{"id": "a", "promt": []}'], "promt"),
        (['{"id": "a", "prompt": [{"stream": "s", "start": 5, "stop": 2}]}'], "prompt parts"),
        (['{"id": "a", "prompt": [{"tokens": [-1]}]}'], "prompt parts"),
        (['{"id": "a", "max_tokens": 1.5}'], "max_tokens"),
        (['{"id": "a", "media": [{"id": "m", "start": 4, "stop": 4}]}'], "start < stop"),
        (['{"id": "a", "after": "b"}'], "after"),
        (['{"id": "a"}', '{"id": "a"}'], "used before"),
        (['{"id": "a", "after": "b"}', '{"id": "b", "continue_of": "a"}'], "cycle"),
    ],
)
def test_bad_traces(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(K3Error, match="K3-R012") as caught:
        load_trace(path)
    assert message in str(caught.value)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    assert k3c("simulate", "--trace", tmp_path / "none.jsonl") == 1


def test_defaults_are_k3_at_tp8() -> None:
    config = SimulateConfig()
    assert config.mla_token_bytes == 27_648
    assert round(config.state_bytes / 1e6, 1) == 56.2
    assert parse_config({}) == config


def sixty_tokens() -> Simulation:
    """One request that stands in the middle of its completion."""
    sim = Simulation(
        parse_config({"page_tokens": 8, "arena_bytes": 10**9}),
        [parse_request(request("a", part("s", 60), max_tokens=20))],
        check=True,
    )
    for _ in range(5):
        sim.step()
    return sim


def corrupt_cell(sim: Simulation) -> None:
    page = sim.cache.arena.pages.place[sim.cache.rows.table[0, 3]]
    sim.device.cells[page, 5] ^= np.uint64(1)


def corrupt_state(sim: Simulation) -> None:
    slot = sim.cache.arena.slots.place[sim.cache.rows.slot[0]]
    sim.device.states[slot] ^= np.uint64(1)


def corrupt_table_entry(sim: Simulation) -> None:
    table = sim.cache.rows.table
    table[0, 3] = table[0, 2]


def swap_table_entries(sim: Simulation) -> None:
    table = sim.cache.rows.table
    table[0, [2, 3]] = table[0, [3, 2]]


@pytest.mark.parametrize(
    "damage", [corrupt_cell, corrupt_state, corrupt_table_entry, swap_table_entries]
)
def test_one_wrong_word_changes_the_output(damage: Any) -> None:
    sim = sixty_tokens()
    damage(sim)
    while sim.scheduler.has_work:
        sim.step()
    assert sim.totals["wrong_outputs"] == 1


def test_without_damage_the_output_is_right() -> None:
    sim = sixty_tokens()
    while sim.has_work:
        sim.step()
    assert (sim.totals["wrong_outputs"], sim.totals["checked_outputs"]) == (0, 1)


def test_every_word_of_a_prompt_matters() -> None:
    base = stream_tokens("s", 0, 100)
    for position in (0, 1, 63, 64, 98, 99):
        other = base.copy()
        other[position] += 1
        assert cold_run(other, 1)[0] != cold_run(base, 1)[0]
    assert cold_run(base, 1, "adapter")[0] != cold_run(base, 1)[0]
