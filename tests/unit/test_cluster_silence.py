"""Engines that take no turns: who is told of, when, and when not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import pytest
from aiohttp import web

from agentrl.clock import MonotonicClock
from agentrl.cluster.events import RunState
from agentrl.cluster.silence import Silence, SilenceChange, SilenceWatch
from agentrl.telemetry.recorder import Recorder
from agentrl.types import EngineAddress
from agentrl.wire.messages import Event

BOTH = {"engine-0", "engine-1"}


def test_a_pause_is_told_after_twenty_seconds_and_its_end_too() -> None:
    silence = Silence()
    verdicts = [silence.looked(BOTH, is_pushing=False, now=now) for now in (0, 5, 10, 15, 20, 25)]
    assert verdicts[:4] == [SilenceChange()] * 4
    assert verdicts[4] == SilenceChange(silent=tuple(sorted(BOTH)), due=tuple(sorted(BOTH)))
    assert verdicts[5] == SilenceChange()
    assert silence.looked({"engine-1"}, is_pushing=False, now=30) == SilenceChange(
        back=("engine-0",)
    )
    assert silence.looked(set(), is_pushing=False, now=35) == SilenceChange(back=("engine-1",))
    assert silence.total_s == 2 * 25 + 5


def test_a_pause_that_lasts_is_told_once_and_a_new_one_again() -> None:
    """Each time the learner is asked for weights: it must not be asked for ever."""
    silence = Silence()
    told = [
        now
        for now in range(0, 101, 5)
        if silence.looked(set() if now == 60 else BOTH, is_pushing=False, now=now).silent
    ]
    assert told == [20, 85]


def test_where_pushes_take_long_weights_are_given_anew_later_and_the_pause_is_told() -> None:
    state, silence = RunState(), Silence()
    costs = {"perf/push_pause_s": 25.0}
    state.apply(Event("published", {"version": 1, "iteration": 1, "metrics": costs}))
    assert state.push_pause_s == 25
    changes = {now: silence.looked(BOTH, False, now, 75) for now in range(0, 101, 5)}
    assert [now for now, change in changes.items() if change.silent] == [20]
    assert [now for now, change in changes.items() if change.due] == [75]


def test_engines_that_a_push_pauses_are_not_silent() -> None:
    silence = Silence()
    for now in range(0, 100, 5):
        assert silence.looked(BOTH, is_pushing=True, now=now) == SilenceChange()
    assert silence.total_s == 0


def test_short_pauses_do_not_add_up() -> None:
    silence = Silence()
    for now in range(0, 100, 5):
        silent = BOTH if now % 15 else set()
        assert silence.looked(silent, is_pushing=False, now=now) == SilenceChange()


def test_a_push_is_open_from_its_announcement_until_the_engines_serve_it() -> None:
    state = RunState()
    seen = [state.is_pushing]
    # The announcement may come twice.
    for kind in ("publishing", "published", "publishing"):
        state.apply(Event(kind, {"version": 1, "iteration": 1}))
        seen.append(state.is_pushing)
    assert seen == [False, True, False, False]


class Told:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.silence_s = 0.0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def event(self, kind: str, data: dict[str, float]) -> None:
        assert kind == "engines"
        self.silence_s = data["silence_s"]


class FastClock(MonotonicClock):
    """A hundred seconds for each real one."""

    def now(self) -> float:
        return 100 * super().now()


@asynccontextmanager
async def paused_engine(answers: dict[str, int]) -> AsyncIterator[EngineAddress]:
    async def ready(request: web.Request) -> web.Response:
        return web.Response(status=answers["status"])

    app = web.Application()
    app.router.add_get("/ready", ready)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield EngineAddress("engine-0", f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


@pytest.mark.anyio
async def test_a_paused_engine_is_told_of_and_given_its_weights_anew() -> None:
    answers = {"status": 503}
    state, told, asked = RunState(), Told(), anyio.Event()
    state.version = 0

    async def ask_for_weights(name: str) -> None:
        assert name == "engine-0"
        answers["status"] = 200  # a push ends with it
        asked.set()

    async with paused_engine(answers) as engine, anyio.create_task_group() as group:
        ended = EngineAddress("engine-1", "http://127.0.0.1:9")
        watch = SilenceWatch(
            lambda: [engine, ended],
            state,
            cast(Recorder, told),
            ask_for_weights,
            FastClock(),
            look_s=0.05,
        )
        group.start_soon(watch.run)
        with anyio.fail_after(300):
            await asked.wait()
            while len(told.notes) < 2:  # noqa: ASYNC110 - the watch tells nobody but the recorder
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert "engine-0 of 2 engines took no turns for 20 s" in told.notes[0]
    assert told.notes[1] == "engine-0 took up turns again"
    assert told.silence_s >= 20


@pytest.mark.anyio
async def test_an_engine_whose_node_is_lost_is_looked_at_no_more() -> None:
    answers, looks = {"status": 503}, 0
    state, told = RunState(), Told()
    state.version = 0

    def engines_left() -> list[EngineAddress]:
        nonlocal looks
        looks += 1
        return [engine] if looks == 1 else []

    async def ask_for_weights(name: str) -> None:
        raise AssertionError(f"{name} is lost")

    async with paused_engine(answers) as engine, anyio.create_task_group() as group:
        watch = SilenceWatch(
            engines_left, state, cast(Recorder, told), ask_for_weights, FastClock(), look_s=0.3
        )
        group.start_soon(watch.run)
        while looks < 4:  # noqa: ASYNC110 - the watch tells nobody but the recorder
            await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert told.notes == []
