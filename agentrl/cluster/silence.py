"""`SilenceWatch`: tells of engines that take no turns although no push is going on.

    asked every 5 s -> says no for 20 s, and no push is open -> told
                    -> for longer than pushes take           -> the learner gives weights anew
                                                             -> takes turns again -> told

A push pauses engines and lets them go on. Whoever pauses one otherwise, or leaves it paused, stops
the run without a word: turns wait inside the engine until their deadline. Weights given anew end
such a pause in the learner's own order, so nothing generates in the middle of a push. They are not
announced, so they are asked for when a silence is three times as long as the last push's pause. An
engine that cannot be reached has ended; that is `watch.py`'s business.
"""

from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import anyio
import msgspec

from agentrl.clock import Clock
from agentrl.cluster.events import RunState
from agentrl.telemetry.recorder import Recorder
from agentrl.types import EngineAddress

__all__ = ["Silence", "SilenceChange", "SilenceWatch"]

#: An answer takes milliseconds; one that takes longer is none.
_ANSWER_S = 4.0
_SILENT_S = 20.0
#: How much longer than the last push's pause a silence must be for weights to be given anew.
_PAUSES = 3.0


class SilenceChange(msgspec.Struct, frozen=True):
    """What a look showed. `silent`: engines to be told of now, once in a silence; `due`: those to
    be given their weights anew, once too; `back`: those told of that take turns again."""

    silent: tuple[str, ...] = ()
    due: tuple[str, ...] = ()
    back: tuple[str, ...] = ()


class Silence:
    """Since when each engine has taken no turns. Pure. `total_s`: of all engines, over the run."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._given: set[str] = set()
        self._last: float | None = None
        self.total_s = 0.0

    def looked(
        self, silent: set[str], is_pushing: bool, now: float, patience_s: float = _SILENT_S
    ) -> SilenceChange:
        """Take in which engines answered that they take no turns. While a push is open nobody is
        counted silent."""
        silent = set() if is_pushing else silent
        if self._last is not None:
            self.total_s += (now - self._last) * len(silent & self._since.keys())
        self._last = now
        self._since = {name: self._since.get(name, now) for name in silent}
        back = set() if is_pushing else self._told - silent
        told, due = (
            {name for name, since in self._since.items() if now - since >= limit_s} - known
            for limit_s, known in ((_SILENT_S, self._told), (patience_s, self._given))
        )
        self._told = (self._told | told) - back
        self._given = (self._given | due) - back
        return SilenceChange(*(tuple(sorted(names)) for names in (told, due, back)))


class SilenceWatch:
    """Looks every `look_s` at those of a run's engines that are not lost (`engines`).
    `ask_for_weights` has the learner give an engine its weights anew."""

    def __init__(
        self,
        engines: Callable[[], Sequence[EngineAddress]],
        state: RunState,
        recorder: Recorder,
        ask_for_weights: Callable[[str], Awaitable[None]],
        clock: Clock,
        look_s: float = 5.0,
    ) -> None:
        self._look_s = look_s
        self._engines, self._state, self._recorder = engines, state, recorder
        self._ask_for_weights, self._clock = ask_for_weights, clock
        self._silence = Silence()

    async def run(self) -> None:
        """Look until cancelled, from the first weights on."""
        await self._state.wait(lambda state: state.version is not None)
        async with aiohttp.ClientSession() as session:
            while True:
                # Engines tell nobody when they are paused.
                await anyio.sleep(self._look_s)
                await self._look(session)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        silent: set[str] = set()
        engines = self._engines()
        was_pushing = self._state.is_pushing

        async def ask(engine: EngineAddress) -> None:
            if not await _takes_turns(session, engine):
                silent.add(engine.name)

        async with anyio.create_task_group() as group:
            for engine in engines:
                group.start_soon(ask, engine)
        is_pushing = was_pushing or self._state.is_pushing
        patience_s = max(_SILENT_S, _PAUSES * self._state.push_pause_s)
        verdict = self._silence.looked(silent, is_pushing, self._clock.now(), patience_s)
        self._recorder.event("engines", {"silence_s": self._silence.total_s})
        if verdict.back:
            self._recorder.note(f"{', '.join(verdict.back)} took up turns again")
        if verdict.silent:
            self._recorder.note(
                f"{', '.join(verdict.silent)} of {len(engines)} engines took no turns for "
                f"{_SILENT_S:.0f} s although no push is going on: paused by a call that is not "
                "the run's own, or standing still. The learner is asked to give weights anew"
                f"{_later(patience_s)}, which ends a pause"
            )
        for name in verdict.due:
            await self._ask_for_weights(name)


def _later(patience_s: float) -> str:
    """When weights are asked for, where that is not now."""
    return "" if patience_s <= _SILENT_S else f" when it has lasted {patience_s:.0f} s"


async def _takes_turns(session: aiohttp.ClientSession, engine: EngineAddress) -> bool:
    """Whether it says so, or has ended. This needs no key."""
    try:
        with anyio.fail_after(_ANSWER_S):
            async with session.get(engine.url.rstrip("/") + "/ready") as answer:
                return answer.status != 503
    except TimeoutError:
        return False
    except (aiohttp.ClientError, OSError):
        return True
