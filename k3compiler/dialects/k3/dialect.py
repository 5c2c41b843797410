"""The k3 dialect itself and the type that carries a step's ragged-batch metadata."""

from k3compiler.ir.dialect import Checked, Dialect, Pure, foreign

FLOATS = ("f32", "bf16")


class K3(Dialect, name="k3"):
    """The model op by op; a few plain ops (linear, norms, activations) stay to the fused level."""


class Batch(K3.Type, name="batch"):
    """One step's metadata (``docs/package.md``, step inputs): who each token is, and where its state lies."""


BatchType = foreign(Batch)  # the same, for operands of ops in other dialects


class K3Op(Checked, dialect=K3, traits=[Pure]):
    """Base of the k3 ops. All are pure: caches and states go in and come out as values."""
