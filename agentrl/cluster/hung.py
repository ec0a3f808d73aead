"""`HungWatch`: kills an engine whose process is there and whose scheduler does not answer.

    asked every twelfth of the limit: answer -> none -> ... -> none for the limit -> killed

A process that ends is started again (`watch.py`); one that stands still does not end. Pushes leave
such an engine out and turns time out on it, so without this the run would go on without its devices
for ever, or end for want of any engine. What is killed ends like any other process: it is started
again, gets weights, and counts in the budget of restarts.

The limit is longer than an engine may stand still for a reason: loading weights, or waiting for a
peer that hangs (`--update-weights-timeout`), or one forward pass (`--sglang-watchdog-timeout`).
Who refuses connections has ended or is about to start: it counts from its first answer on, because
an engine that starts may listen, and compile for minutes.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

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

__all__ = ["Hung", "HungWatch", "Look", "limit_of"]

#: After how many seconds of one forward pass SGLang ends a scheduler, unless it is told otherwise.
_WATCHDOG_S = 300.0


def limit_of(config: RunConfig) -> float:
    """Seconds without an answer after which an engine hangs."""
    call_s = config.call_timeout_s
    forward_s = float(config.sglang.get("watchdog_timeout") or _WATCHDOG_S)
    return max(6 * call_s, config.update_weights_timeout + 2 * call_s, forward_s + 2 * call_s)


Look = Literal["answers", "silent", "away"]


class Hung:
    """Since when each engine that has answered before is silent. Who is there at the first look has
    taken weights, which is an answer. Pure."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._last: dict[str, float] = {}
        self._has_looked = False

    def looked(self, looks: Mapping[str, Look], now: float) -> list[str]:
        """Take in what was seen of each. Those to be killed now; each then counts from its next
        answer."""
        if not self._has_looked:
            self._last = dict.fromkeys(looks, now)
            self._has_looked = True
        for name in self._last.keys() - looks.keys():
            del self._last[name]
        for name, look in looks.items():
            if look == "answers":
                self._last[name] = now
            elif look == "away":
                self._last.pop(name, None)
        due = sorted(name for name, last in self._last.items() if now - last >= self._limit_s)
        for name in due:
            del self._last[name]
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
        looks: dict[str, Look] = {}

        async def ask(engine: EngineAddress) -> None:
            looks[engine.name] = await _seen(session, engine, self._limit_s / 12)

        async with anyio.create_task_group() as group:
            for engine in self._engines():
                group.start_soon(ask, engine)
        for name in self._hung.looked(looks, self._clock.now()):
            with suppress(SlotLostError):  # who watches the slot decides
                if await self._kill(name):
                    self._recorder.note(
                        f"{name} did not answer for {self._limit_s:g} s, and its process is "
                        "there: it hangs; it is killed and started again"
                    )


async def _seen(session: aiohttp.ClientSession, engine: EngineAddress, timeout_s: float) -> Look:
    """Whether its scheduler says something in time, or nobody listens there."""
    try:
        with anyio.fail_after(timeout_s):
            async with session.get(engine.url.rstrip("/") + OF_SCHEDULER) as answer:
                await answer.read()
    except TimeoutError:
        return "silent"
    except (aiohttp.ClientError, OSError):
        return "away"
    return "answers"
