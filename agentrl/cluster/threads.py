"""Calls that wait, beside the event loop."""

from typing import Any

import anyio
import anyio.to_thread

__all__ = ["in_thread"]


async def in_thread(function: Any, *args: Any, limiter: anyio.CapacityLimiter | None = None) -> Any:
    """Call something that waits, beside the event loop."""
    return await anyio.to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=limiter)
