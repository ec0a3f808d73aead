"""`load_function`: the function of a dotted name."""

import importlib
from typing import Any

__all__ = ["load_function"]


def load_function(path: str) -> Any:
    """What stands at `package.module.name`. Raises ImportError, AttributeError."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
