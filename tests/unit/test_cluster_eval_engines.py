"""Engines of evaluations get the weights to evaluate, and again when they are started again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from agentrl.cluster.eval_engines import EvalEngines
from agentrl.cluster.events import RunState
from agentrl.errors import EngineError
from agentrl.eval_weights import EvalWeights
from agentrl.types import EngineAddress

pytestmark = pytest.mark.anyio

NAME = "eval-engine-0"
WEIGHTS = EvalWeights(7, 12, Path("/shared/evaluated/version_0000007_iteration_0000012"))


class Engine:
    """Speaks SGLang's control plane: which weights it has, and what it was asked for."""

    def __init__(self) -> None:
        self.label, self.refuses, self.url = "default", False, ""
        self.asked: list[tuple[str, Any]] = []
        self.loaded = anyio.Event()

    async def told(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.label})

    async def asked_for(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append((request.path, body.get("model_path")))
        if request.path == "/update_weights_from_disk":
            if self.refuses:
                return web.json_response({"success": False, "message": "no such file"}, status=400)
            self.label = body["weight_version"]
        if request.path == "/continue_generation":
            self.loaded.set()
        return web.json_response({"success": True, "message": ""})


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Engine, EvalEngines, RunState]]:
    engine, state = Engine(), RunState()
    app = web.Application()
    app.router.add_get("/model_info", engine.told)
    for path in ("pause_generation", "update_weights_from_disk", "continue_generation"):
        app.router.add_post(f"/{path}", engine.asked_for)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    here = [EngineAddress(NAME, engine.url, "evaluation")]
    engines = EvalEngines(lambda: here, state, timeout_s=30, start_timeout_s=30, key=None)
    try:
        yield engine, engines, state
    finally:
        await runner.cleanup()


async def test_weights_are_loaded_once_while_no_turn_goes_on() -> None:
    async with running() as (engine, engines, _):
        await engines.load(WEIGHTS)
        await engines.load(WEIGHTS)
    assert engine.label == "7"
    assert engine.asked == [
        ("/pause_generation", None),
        ("/update_weights_from_disk", str(WEIGHTS.folder)),
        ("/continue_generation", None),
    ]


async def test_an_engine_that_is_started_again_gets_them_again() -> None:
    async with running() as (engine, engines, state), anyio.create_task_group() as tasks:
        await engines.load(WEIGHTS)
        tasks.start_soon(engines.keep, WEIGHTS)
        for _ in range(2):
            engine.label, engine.loaded = "default", anyio.Event()
            state.started(NAME)
            with anyio.fail_after(30):
                await engine.loaded.wait()
            assert engine.label == "7"
        tasks.cancel_scope.cancel()


async def test_an_engine_that_goes_away_is_waited_for_no_more_and_gets_them_when_it_is_back() -> (
    None
):
    async with running() as (engine, _, state), anyio.create_task_group() as tasks:
        url = engine.url
        here = {
            NAME: EngineAddress(NAME, url, "evaluation"),
            "eval-engine-1": EngineAddress("eval-engine-1", "http://127.0.0.1:9", "evaluation"),
        }
        engines = EvalEngines(
            lambda: list(here.values()), state, timeout_s=30, start_timeout_s=600, key=None
        )

        async def leave() -> None:
            await engine.loaded.wait()
            del here["eval-engine-1"]
            state.notify()

        tasks.start_soon(leave)
        with anyio.fail_after(30):
            await engines.load(WEIGHTS)
        assert engine.label == "7"
        here.clear()
        engine.label, engine.loaded = "default", anyio.Event()
        tasks.start_soon(engines.keep, WEIGHTS)
        await anyio.wait_all_tasks_blocked()
        here[NAME] = EngineAddress(NAME, url, "evaluation")
        state.started(NAME)
        with anyio.fail_after(30):
            await engine.loaded.wait()
        tasks.cancel_scope.cancel()


async def test_an_engine_that_cannot_load_them_is_an_error() -> None:
    async with running() as (engine, engines, _):
        engine.refuses = True
        with pytest.raises(EngineError, match="no such file"):
            await engines.load(WEIGHTS)
