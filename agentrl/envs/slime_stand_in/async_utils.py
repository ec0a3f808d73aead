"""`run`: a coroutine to its end, from a function that is not async."""

import asyncio
import threading
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")
_HERE = threading.local()


def run(coro: Coroutine[Any, Any, T]) -> T:
    """What `coro` returns. Each thread has one event loop for all its calls, because clients and
    locks of libraries are bound to theirs."""
    if not hasattr(_HERE, "runner"):
        _HERE.runner = asyncio.Runner()
    runner: asyncio.Runner = _HERE.runner
    return runner.run(coro, context=copy_context())
