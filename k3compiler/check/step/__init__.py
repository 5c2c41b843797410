"""A rank's whole decode step, timed at full depth on memory filled at random."""

from k3compiler.check.step.bench import StepBench, StepPoint, bench_steps

__all__ = ["StepBench", "StepPoint", "bench_steps"]
