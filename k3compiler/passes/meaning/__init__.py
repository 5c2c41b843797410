"""What ops mean, over the reference: a module of level 1 or 2 run in numpy (design section 5, tests by meaning)."""

from k3compiler.passes.meaning.interpreter import interpret, interpret_ranks

__all__ = ["interpret", "interpret_ranks"]
