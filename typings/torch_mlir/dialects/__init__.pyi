# torch-mlir ships no types for its bindings; this hole is theirs, so it is Any here.
from typing import Any

def __getattr__(name: str) -> Any: ...
