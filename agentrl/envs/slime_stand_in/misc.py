"""`load_function`: the function of a dotted name. `SingletonMeta`: classes of one object."""

import importlib
import threading
from typing import Any, ClassVar

__all__ = ["SingletonMeta", "load_function"]


def load_function(path: str) -> Any:
    """What stands at `package.module.name`. Raises ImportError, AttributeError."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


class SingletonMeta(type):
    """Has one object of a class in a process, made by the first call."""

    _made: ClassVar[dict[type, Any]] = {}
    _lock = threading.RLock()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        with SingletonMeta._lock:
            if cls not in SingletonMeta._made:
                SingletonMeta._made[cls] = super().__call__(*args, **kwargs)
            return SingletonMeta._made[cls]

    def clear_instances(cls) -> None:
        """Have the next call make one anew."""
        SingletonMeta._made.pop(cls, None)
