# Checked as Any: its own sources would be most of what the type checker reads.
from typing import Any

def __getattr__(name: str) -> Any: ...
