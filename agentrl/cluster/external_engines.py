"""Engines that somebody else started: no process of the run tells that one ended or came back.

    PRESENT --no answer, twice in a row--> LOST     it leaves the router; the others take its turns
       ^                                     |
       +-- answers; weights are asked for ---+
    PRESENT --answers under the label of its start--> as if it had been LOST and back

Each is asked for the label of its weights every 5 s. A lost one is never started again: that is for
whoever started it. It is routed when the learner has given it the weights anew. At the end of the
run all go on running; one that a push left paused is unpaused.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import anyio
import msgspec

from agentrl.cluster.events import RunState
from agentrl.cluster.spec import RunSpec
from agentrl.errors import EngineError
from agentrl.serving.control import EngineControl
from agentrl.serving.http_control import EngineRefusedError
from agentrl.serving.key import read_key
from agentrl.telemetry.recorder import Recorder
from agentrl.types import EngineAddress

__all__ = ["ExternalWatch", "Presence", "PresenceChange", "leave_engines"]

#: An answer takes milliseconds; one that takes longer is none.
_ANSWER_S = 4.0
#: Looks in a row without an answer after which an engine is lost.
_PATIENCE = 2
#: All calls to an engine that the run leaves.
_LEAVE_S = 10.0


class PresenceChange(msgspec.Struct, frozen=True):
    """What a look showed: engines that are lost, and engines that need the weights anew."""

    lost: tuple[str, ...] = ()
    back: tuple[str, ...] = ()


class Presence:
    """Which engines are there, and hold weights of the run. Pure."""

    def __init__(self) -> None:
        self._missed: dict[str, int] = {}
        self._lost: set[str] = set()
        self._asked: set[str] = set()

    def looked(self, labels: Mapping[str, str | None]) -> PresenceChange:
        """Take in the label that each engine has for its weights; None: it did not answer. Versions
        of the run are numbers, and what a server starts with is called by a word."""
        lost: set[str] = set()
        back: set[str] = set()
        for name, label in labels.items():
            self._missed[name] = self._missed.get(name, 0) + 1 if label is None else 0
            if label is None:
                if self._missed[name] >= _PATIENCE and name not in self._lost:
                    lost.add(name)
                continue
            holds = label.isdecimal()
            if name in self._lost:
                back.add(name)
            elif not holds and name not in self._asked:
                lost.add(name)
                back.add(name)
            elif holds:
                self._asked.discard(name)
        self._lost = (self._lost | lost) - back
        self._asked |= back
        return PresenceChange(tuple(sorted(lost)), tuple(sorted(back)))


class ExternalWatch:
    """Looks at a run's engines every `look_s`. `unroute` takes one out of the router;
    `ask_for_weights` has the learner give one its weights anew."""

    def __init__(
        self,
        spec: RunSpec,
        state: RunState,
        recorder: Recorder,
        unroute: Callable[[str], Awaitable[None]],
        ask_for_weights: Callable[[str], Awaitable[None]],
        look_s: float = 5.0,
    ) -> None:
        self._engines = {engine.name: engine for engine in spec.engines}
        self._key = read_key(spec.engine_key_file)
        self._state, self._recorder = state, recorder
        self._unroute, self._ask_for_weights = unroute, ask_for_weights
        self._look_s = look_s
        self._presence = Presence()

    async def run(self) -> None:
        """Look until cancelled, from the first weights on."""
        await self._state.wait(lambda state: state.version is not None)
        while True:
            # Such an engine tells nobody when it ends.
            await anyio.sleep(self._look_s)
            await self._act(self._presence.looked(await self._look()))

    async def _look(self) -> dict[str, str | None]:
        labels: dict[str, str | None] = dict.fromkeys(self._engines)

        async def ask(engine: EngineAddress) -> None:
            labels[engine.name] = await _label_of(engine, self._key)

        async with anyio.create_task_group() as group:
            for engine in self._engines.values():
                group.start_soon(ask, engine)
        return labels

    async def _act(self, change: PresenceChange) -> None:
        for name in change.lost:
            await self._unroute(name)
            if name not in change.back:
                self._recorder.note(
                    f"{self._shown(name)} does not answer: it gets no more turns, and its weights "
                    f"when it answers again; the run has {len(self._engines)} engines, and starts "
                    "none of them"
                )
        for name in change.back:
            how = "was started anew" if name in change.lost else "answers again"
            self._recorder.note(f"{self._shown(name)} {how}: the learner gives it the weights")
            await self._ask_for_weights(name)

    def _shown(self, name: str) -> str:
        return f"{name} ({self._engines[name].url})"


async def _label_of(engine: EngineAddress, key: str | None) -> str | None:
    try:
        async with EngineControl(engine, timeout_s=_ANSWER_S, key=key) as control:
            return await control.weight_version()
    except EngineError:
        return None


async def leave_engines(engines: Sequence[EngineAddress], key: str | None) -> list[str]:
    """Have those go on that a push left paused, as one that was cut short does; returns notes."""
    notes: list[str] = []
    async with anyio.create_task_group() as group:
        for engine in engines:
            group.start_soon(_leave, engine, key, notes)
    return sorted(notes)


async def _leave(engine: EngineAddress, key: str | None, notes: list[str]) -> None:
    where = f"{engine.name} ({engine.url})"
    try:
        with anyio.fail_after(_LEAVE_S):
            async with EngineControl(engine, timeout_s=_LEAVE_S, key=key) as control:
                if await control.takes_turns():
                    return
                with suppress(EngineRefusedError):  # no update is open
                    await control.end_update()
                await control.resume()
    except (EngineError, TimeoutError) as error:
        notes.append(f"{where} was not left as it should be, and may be paused: {error}")
    else:
        notes.append(
            f"{where} was paused in the middle of a push and goes on; it may hold a part of it"
        )
