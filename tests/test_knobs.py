"""Knobs: defaults, values, and refusals that name the variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k3compiler import knobs
from k3compiler.errors import K3Error

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for knob in knobs.KNOBS:
        monkeypatch.delenv(knob.name, raising=False)


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert knobs.CACHE_DIR.get() == tmp_path / "k3compiler"
    assert knobs.NUM_THREADS.get() >= 1 and knobs.JOBS.get() >= 1
    assert knobs.VERIFY.get() == "stages"
    assert not knobs.NVTX.get() and not knobs.POISON.get()
    assert knobs.DUMP_DIR.get() is None


@pytest.mark.parametrize(
    ("knob", "text", "value"),
    [
        (knobs.CACHE_DIR, "/var/k3", Path("/var/k3")),
        (knobs.NUM_THREADS, "3", 3),
        (knobs.JOBS, "1024", 1024),
        (knobs.VERIFY, "passes", "passes"),
        (knobs.NVTX, "true", True),
        (knobs.POISON, "0", False),
        (knobs.DUMP_DIR, "/var/dumps", Path("/var/dumps")),
        (knobs.JOBS, "", knobs.JOBS.default()),
    ],
)
def test_values(
    knob: knobs.Knob[Any], text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(knob.name, text)
    assert knob.get() == value


@pytest.mark.parametrize(
    ("knob", "text"),
    [
        (knobs.NUM_THREADS, "0"),
        (knobs.NUM_THREADS, "many"),
        (knobs.JOBS, "1.5"),
        (knobs.JOBS, "1025"),
        (knobs.VERIFY, "always"),
        (knobs.NVTX, "yes"),
        (knobs.POISON, "2"),
    ],
)
def test_bad_values_name_the_variable(
    knob: knobs.Knob[Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(knob.name, text)
    with pytest.raises(K3Error) as refused:
        knob.get()
    assert refused.value.code == "K3-E001"
    assert knob.name in refused.value.where
    assert refused.value.expected == knob.allowed and repr(text) in refused.value.found


def test_only_knobs_reads_the_environment() -> None:
    words = ("os.environ", "getenv")
    for path in (ROOT / "k3compiler").rglob("*.py"):
        if path.name != "knobs.py":
            text = path.read_text()
            assert not any(word in text for word in words), path
