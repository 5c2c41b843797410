"""A rank's whole decode step, timed at full depth on memory filled at random."""

from k3compiler.check.step.bench import bench_steps
from k3compiler.check.step.records import StepBench, StepPoint

__all__ = ["StepBench", "StepPoint", "bench_steps"]
