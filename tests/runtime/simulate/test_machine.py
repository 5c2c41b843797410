"""Random interleavings of everything that can happen, with every invariant after every step."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.runtime.simulate.driver import Driver, random_config, random_run

RANDOM = st.integers(0, 2**32 - 1).map(random.Random)


class SimulatorMachine(RuleBasedStateMachine):
    """The driver's actions in an order that hypothesis chooses and shrinks."""

    driver: Driver

    @initialize(choose=RANDOM)
    def begin(self, choose: random.Random) -> None:
        self.driver = Driver(random_config(choose))

    @rule(choose=RANDOM, count=st.integers(1, 3))
    def arrive(self, choose: random.Random, count: int) -> None:
        for _ in range(count):
            self.driver.arrive(choose)

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()

    @rule(choose=RANDOM)
    def abort(self, choose: random.Random) -> None:
        self.driver.abort(choose)

    @rule(choose=RANDOM)
    def preempt(self, choose: random.Random) -> None:
        self.driver.preempt(choose)

    @rule(choose=RANDOM)
    def evict(self, choose: random.Random) -> None:
        self.driver.evict(choose)

    @rule(choose=RANDOM)
    def compact(self, choose: random.Random) -> None:
        self.driver.compact(choose)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.finish()


@pytest.mark.slow
def test_interleavings() -> None:
    options = settings(
        max_examples=15,
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(SimulatorMachine, settings=options)


@pytest.mark.slow
def test_two_thousand_steps() -> None:
    total = seed = 0
    while total < 2000:
        total += random_run(seed).num_steps
        seed += 1


@pytest.mark.nightly
def test_a_hundred_thousand_steps() -> None:
    total, seed = 0, 10_000
    while total < 100_000:
        total += random_run(seed, 200).num_steps
        seed += 1
