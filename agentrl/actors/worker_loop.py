"""`WorkerLoop`: an event loop that user code cannot end.

asyncio lets a SystemExit and a KeyboardInterrupt out of any task or callback end its loop, beside
giving it to whoever awaits the task. A tool, or an agent framework around it, may start tasks of
its own: what such a task raises belongs to the episode that awaits it, and to no other. So the loop
goes on; it ends with what its main task raises. Signals are not concerned: a worker hears them
through the loop, where none raises anything.
"""

import asyncio
import logging
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

from agentrl.visible import error_text

__all__ = ["WorkerLoop"]

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class WorkerLoop(asyncio.SelectorEventLoop):
    """Give it to `anyio.run` as `loop_factory`."""

    _main: asyncio.Future[Any] | None = None

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """As every loop's. Raises what `future` raises."""
        main: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        self._main = main
        return super().run_until_complete(main)

    def run_forever(self) -> None:
        """Run until stopped, or until the main task has ended by a SystemExit or an interrupt."""
        while True:
            try:
                return super().run_forever()
            except (SystemExit, KeyboardInterrupt) as failure:
                if self._main is None or self._main.done():
                    raise
                words = error_text(failure)
                _LOG.warning("user code raised %s in a task of its own; the worker goes on", words)
