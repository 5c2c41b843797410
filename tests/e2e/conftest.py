"""Whole models on the CPU target: compiled once a run, shared by the workers of ``pytest -n``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from k3compiler.cli import main as cli
from k3compiler.runtime.engine import Engine
from tests.e2e.models import Make, Model, Models

CONTEXT = 512
K3c = Callable[..., int]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Models:
    base = tmp_path_factory.getbasetemp()
    return Models((base if worker_id == "master" else base.parent) / "e2e-models")


class Engines:
    """Open engines by package and segment size."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int | None], Engine] = {}

    def of(self, model: Model, *, segment_chunks: int | None = None) -> Engine:
        """Two threads, NaN in whatever nothing wrote, four sequences of 512 tokens."""
        key = (str(model.package), segment_chunks)
        if key not in self._open:
            self._open[key] = Engine(
                model.package,
                model.checkpoint,
                max_context=CONTEXT,
                max_sequences=4,
                prefill_tokens=256,
                segment_chunks=segment_chunks,
                num_threads=2,
                poison=True,
            )
        return self._open[key]

    def close(self) -> None:
        for engine in self._open.values():
            engine.close()


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture(scope="session")
def nano(models: Models) -> Model:
    return models.nano()


@pytest.fixture
def make(nano: Model) -> Iterator[Make]:
    """Engines of the nano model with poisoned memory and the options given; closed at the end."""
    made: list[Engine] = []

    def engine(**options: Any) -> Engine:
        base: dict[str, Any] = {
            "max_context": CONTEXT,
            "max_sequences": 4,
            "prefill_tokens": 256,
            "num_threads": 2,
        }
        made.append(Engine(nano.package, nano.checkpoint, poison=True, **(base | options)))
        return made[-1]

    yield engine
    for one in made:
        one.close()


@pytest.fixture
def k3c() -> K3c:
    """Runs one command line in this process; -> its exit code."""

    def run(*arguments: object) -> int:
        with pytest.raises(SystemExit) as leaving:
            cli.main([str(a) for a in arguments])
        assert isinstance(leaving.value.code, int)
        return leaving.value.code

    return run
