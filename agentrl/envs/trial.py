"""One promise of an Env, tried under limits of time: what `contract` tries them with."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from agentrl.envs.any_turn import endless, turns
from agentrl.envs.env import Env
from agentrl.envs.ground import Ground
from agentrl.envs.messages import AssistantTurn, Step
from agentrl.envs.share import Share
from agentrl.envs.watch import BlockedError, OverdueError, Watch, run_watched
from agentrl.errors import InfrastructureError
from agentrl.tools.tool import Tool
from agentrl.user_traceback import words_of

__all__ = [
    "ERRORS",
    "LateError",
    "Memory",
    "Problem",
    "Promise",
    "RaisedError",
    "Trial",
    "UntriedError",
    "tried",
]

#: What user code may raise, and what is then said of it.
ERRORS = (Exception, SystemExit, asyncio.CancelledError)

Problem = str | None


class LateError(Exception):
    """Its text says what took too long."""


class RaisedError(Exception):
    """Its text is what user code raised where another promise was tried."""


class UntriedError(Exception):
    """Its text is a `note`; what could be tried has been."""


class Memory:
    """What one promise has found out and the others need not: an Env may be slow to begin."""

    def __init__(self) -> None:
        self.tools: Mapping[str, Tool[Any]] | None = None


def tried(
    keeps: "Promise", ground: Ground, limit_s: float, share: Share, memory: Memory
) -> Problem:
    """How a promise is broken, or None. Raises InfrastructureError, UntriedError, RaisedError."""
    try:
        return run_watched(lambda watch: keeps(Trial(ground, watch, limit_s, share, memory)))
    except (InfrastructureError, UntriedError, RaisedError):
        raise
    except LateError as late:
        return str(late)
    except OverdueError as overdue:
        return f"{overdue.method} goes on {limit_s:g} s after it began, and heeds no cancellation"
    except BlockedError as error:
        return str(error)
    except ERRORS as error:
        raise RaisedError(words_of(error)) from error


class Trial:
    """A promise that is being tried: its ground, a limit for each thing that is done on it, and its
    share of time for all of them."""

    def __init__(
        self, ground: Ground, watch: Watch, limit_s: float, share: Share, memory: Memory
    ) -> None:
        self.ground = ground
        self.name = ground.cls.__qualname__
        self.doing = ""
        self.share = share
        self._memory = memory
        self._watch = watch
        self._limit_s = limit_s

    @contextmanager
    def within(self, what: str) -> Iterator[None]:
        """What is inside has its limit of time; then a `LateError` names it. One at a time."""
        with self._watch.phase(f"{self.name}, on {what},", self._limit_s) as deadline:
            yield
        if deadline.cancel_called:  # whatever has become of the cancellation
            raise LateError(f"{self.name} took more than {self._limit_s:g} s on {what}")

    async def tools(self) -> Mapping[str, Tool[Any]]:
        """Those that `reset` leaves: it may have found some."""
        if self._memory.tools is None:
            with self.within("a reset"):
                async with self.begun() as env:
                    self._memory.tools = dict(env.tools)
        assert self._memory.tools is not None  # or `within` has raised
        return self._memory.tools

    async def script(self) -> list[tuple[str, AssistantTurn]]:
        """`turns` for the Env's tools."""
        return list(turns(await self.tools()))

    async def policies(self) -> list[tuple[str, Sequence[AssistantTurn]]]:
        """`endless` for the Env's tools."""
        return list(endless(await self.tools()))

    async def answered(self, what: str, turn: AssistantTurn) -> Step:
        """How a fresh Env answers `turn`, which is `what`."""
        with self.within(what):
            async with self.begun() as env:
                self.doing = "step"
                step = await env.step(turn)
                self.doing = "close"
                return step
        raise AssertionError  # `within` has raised

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Env]:
        """A fresh Env that has been reset, and is closed whatever comes of it."""
        env = self.ground.make()
        try:
            self.doing = "reset"
            await self.ground.reset(env)
            yield env
        finally:
            await env.close()


#: Tries it.
Promise = Callable[[Trial], Coroutine[Any, Any, Problem]]
