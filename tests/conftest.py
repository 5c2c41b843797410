"""Test tiers (style of the whole suite): a tier whose tool is absent is skipped with the reason.

``--expect t0,t1,t2`` names the tiers that must be able to run on this machine: there a missing tool
fails the tests instead of skipping them (CI passes it, so that a green run never hides a tier).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest


def _missing_mlir() -> str | None:
    return None if importlib.util.find_spec("torch_mlir") else "torch-mlir is not installed"


def _missing_toolchain() -> str | None:
    return None if importlib.util.find_spec("triton") else "triton is not installed"


def _missing_device() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "no GPU runtime: torch is not installed"
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA device on this machine"
    return None


_PROBES: dict[str, Callable[[], str | None]] = {
    "t0": lambda: None,
    "t1": _missing_mlir,
    "t2": _missing_toolchain,
    "t3": _missing_device,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expect",
        default="t0",
        metavar="TIERS",
        help="comma-separated tiers that must be able to run here: a missing tool is an error",
    )


def pytest_configure(config: pytest.Config) -> None:
    unknown = _expected(config) - set(_PROBES)
    if unknown:
        raise pytest.UsageError(
            f"--expect: unknown tiers {sorted(unknown)}; known: {list(_PROBES)}"
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip (or fail, where the tier is expected) a test whose tool is absent."""
    for tier, probe in _PROBES.items():
        if item.get_closest_marker(tier) is None:
            continue
        reason = probe()
        if reason is None:
            continue
        if tier in _expected(item.config):
            pytest.fail(f"tier {tier} is expected on this machine, but {reason}", pytrace=False)
        pytest.skip(f"{tier}: {reason}")


def _expected(config: pytest.Config) -> set[str]:
    return {tier for tier in str(config.getoption("--expect")).split(",") if tier}
