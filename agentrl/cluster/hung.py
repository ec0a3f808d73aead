"""`HungWatch`: kills an engine whose process is there and whose scheduler does not answer.

    asked every twelfth of the limit -> no answer -> ... -> none for the limit -> killed

A process that ends is started again (`watch.py`); one that stands still does not end. Pushes leave
such an engine out and turns time out on it, so without this the run would go on without its devices
for ever, or end for want of any engine. What is killed ends like any other process: it is started
again, gets weights, and counts in the budget of restarts.

The limit is longer than an engine may stand still for a reason: loading weights, or waiting for a
peer that hangs (`--update-weights-timeout`), or one forward pass, of which SGLang itself ends a
scheduler after 300 s. Who refuses connections has ended or is about to start, and is not counted.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import aiohttp
import anyio

from agentrl.clock import Clock
from agentrl.cluster.events import RunState
from agentrl.config.run import RunConfig
from agentrl.errors import SlotLostError
from agentrl.serving.control import OF_SCHEDULER
from agentrl.serving.key import authorization
from agentrl.telemetry.recorder import Recorder
from agentrl.types import EngineAddress

__all__ = ["Hung", "HungWatch", "limit_of"]


def limit_of(config: RunConfig) -> float:
    """Seconds without an answer after which an engine hangs."""
    call_s = config.call_timeout_s
    return max(6 * call_s, config.update_weights_timeout + 2 * call_s)


class Hung:
    """Since when each engine has not answered. Pure."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[str, float] = {}

    def looked(self, unanswered: set[str], now: float) -> list[str]:
        """Take in who did not answer. Those to be killed now; each then counts from nothing."""
        self._since = {name: self._since.get(name, now) for name in unanswered}
        due = sorted(name for name, since in self._since.items() if now - since >= self._limit_s)
        for name in due:
            del self._since[name]
        return due


class HungWatch:
    """Looks at the engines of a run that it has started and that are not lost (`engines`), once
    they have weights. `limit_s`: see `limit_of`. `kill` ends an engine's process, and says whether
    it was there."""

    def __init__(
        self,
        engines: Callable[[], Sequence[EngineAddress]],
        state: RunState,
        recorder: Recorder,
        kill: Callable[[str], Awaitable[bool]],
        clock: Clock,
        *,
        limit_s: float,
        key: str | None,
    ) -> None:
        self._engines, self._state, self._recorder = engines, state, recorder
        self._kill, self._clock, self._limit_s = kill, clock, limit_s
        self._hung = Hung(limit_s)
        self._headers = authorization(key)

    async def run(self) -> None:
        """Look until cancelled, from the first weights on."""
        await self._state.wait(lambda state: state.version is not None)
        async with aiohttp.ClientSession(headers=self._headers) as session:
            while True:
                # An engine that hangs tells nobody.
                await anyio.sleep(self._limit_s / 12)
                await self._look(session)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        unanswered: set[str] = set()

        async def ask(engine: EngineAddress) -> None:
            if not await _answers(session, engine, self._limit_s / 12):
                unanswered.add(engine.name)

        async with anyio.create_task_group() as group:
            for engine in self._engines():
                group.start_soon(ask, engine)
        for name in self._hung.looked(unanswered, self._clock.now()):
            with suppress(SlotLostError):  # who watches the slot decides
                if await self._kill(name):
                    self._recorder.note(
                        f"{name} did not answer for {self._limit_s:g} s, and its process is "
                        "there: it hangs; it is killed and started again"
                    )


async def _answers(session: aiohttp.ClientSession, engine: EngineAddress, timeout_s: float) -> bool:
    """Whether its scheduler says something in time, or nobody listens there."""
    try:
        with anyio.fail_after(timeout_s):
            async with session.get(engine.url.rstrip("/") + OF_SCHEDULER) as answer:
                await answer.read()
    except TimeoutError:
        return False
    except (aiohttp.ClientError, OSError):
        return True
    return True
