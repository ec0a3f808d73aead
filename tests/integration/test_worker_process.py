"""A worker process, as a run starts it, with a scripted engine: no user code ends it."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from aiohttp import web
from anyio.abc import Process

from agentrl.cluster.spec import ModelFacts, RunSpec
from agentrl.cluster.standstill import STACKS, stacks_of
from agentrl.config.run import RunConfig
from agentrl.types import EngineAddress, EpisodeAssignment, EpisodeId, Outcome, SamplingParams, Task
from agentrl.wire.messages import Assign
from agentrl.wire.transport import RouterSocket
from tests.integration.test_actors_worker import ANSWER, MODEL, ScriptedBuffer

pytestmark = pytest.mark.anyio

#: An environment that does what its task says, and a rollout that does it in a task of its own.
CODE = '''
import asyncio

from agentrl import Env, Message, Step, tool
from agentrl.envs.messages import ToolCall
from agentrl.tools import run_calls


class Unreadable(Exception):
    def __str__(self):
        raise SystemExit(3)


KINDS = {
    "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit, "Unreadable": Unreadable,
}


class Unruly(Env):
    """Raises at its first turn what the task says, where the task says."""

    async def reset(self, *, seed, task):
        self.kind, self.where = KINDS.get(task["kind"]), task["where"]
        return [Message.user("?")]

    async def step(self, turn):
        calls = {"parallel": ["run"] * 3, "serial": ["walk"], "threads": ["work"] * 2}
        if self.where in calls:
            wanted = [ToolCall(str(i), name, b"{}") for i, name in enumerate(calls[self.where])]
            await run_calls(self, wanted, 60.0)
        elif self.where == "own task":
            await asyncio.gather(self.fail(), asyncio.sleep(600))
        elif self.where == "callback":
            asyncio.get_running_loop().call_soon(self.raise_it)
            await asyncio.sleep(0.1)
        return Step(reward=1.0, terminated=True)

    def raise_it(self):
        raise self.kind("on purpose")

    async def fail(self):
        self.raise_it()

    @tool(parallel=True)
    async def run(self) -> str:
        """Run."""
        self.raise_it()

    @tool
    async def walk(self) -> str:
        """Walk."""
        self.raise_it()

    @tool(parallel=True, thread=True)
    def work(self) -> str:
        """Work."""
        self.raise_it()
'''

KINDS = ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "Unreadable"]
PLACES = ["serial", "parallel", "threads", "own task", "callback"]


class Engine:
    """Answers each turn with `42`; that of an episode in `held` only when `release` is set."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.waiting = anyio.Event()
        self.release = anyio.Event()

    async def generate(self, request: web.Request) -> web.Response:
        await request.read()
        if request.headers["X-SMG-Routing-Key"].partition("#")[0] in self.held:
            self.waiting.set()
            await self.release.wait()
        ids = list(ANSWER)
        meta = {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
            "weight_versions": [{"version": "1", "start": 0, "end": len(ids)}],
        }
        return web.json_response({"output_ids": ids, "meta_info": meta})


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/generate", engine.generate)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


def spec(tmp_path: Path, url: str) -> RunSpec:
    code = tmp_path / "unruly.py"
    code.write_text(CODE)
    config = RunConfig(env=f"{code}:Unruly", rollout_max_prompt_len=400, max_concurrent_episodes=64)
    return RunSpec(
        config=config,
        run_dir=str(tmp_path),
        model_dir=str(MODEL),
        model=ModelFacts(json.loads((MODEL / "config.json").read_bytes())["vocab_size"], 512),
        buffer_address=f"ipc://{tmp_path}/b.sock",
        router_url=url,
        engines=[EngineAddress("engine-0", url)],
        services={},
        master_address="127.0.0.1",
        master_port=1,
        collective_address="127.0.0.1",
    )


def assignment(index: int, **row: Any) -> EpisodeAssignment:
    return EpisodeAssignment(
        EpisodeId("00000001", index), 1, 7, Task("t", row), SamplingParams(max_new_tokens=16)
    )


async def _asked(process: Process) -> bool:
    process.send_signal(STACKS)
    return True


async def test_no_user_code_ends_the_process_or_the_episode_beside_it(tmp_path: Path) -> None:
    cases = [(kind, where) for kind in KINDS for where in PLACES]
    engine = Engine()
    engine.held.add("00000001/0")
    async with serving(engine) as url:
        told = spec(tmp_path, url)
        (tmp_path / "spec.json").write_bytes(msgspec.json.encode(told))
        router = RouterSocket(told.buffer_address)
        async with router, anyio.create_task_group() as group:
            buffer = ScriptedBuffer(router)
            group.start_soon(buffer.serve)
            arguments = ["-m", "agentrl.cluster.roles", "worker-0", str(tmp_path / "spec.json")]
            with (tmp_path / "log").open("wb") as log:
                process = await anyio.open_process(
                    [sys.executable, *arguments], stdout=log, stderr=log
                )
            try:
                await buffer.until(lambda: bool(buffer._identity), 60)
                buffer.say(Assign([assignment(0, kind="none", where="nowhere")]))
                with anyio.fail_after(300):
                    await engine.waiting.wait()
                wild = [assignment(i + 1, kind=k, where=w) for i, (k, w) in enumerate(cases)]
                buffer.say(Assign(wild))
                await buffer.until(lambda: len(buffer.finished) == len(cases), 60)
                engine.release.set()
                await buffer.until(lambda: 0 in buffer.finished, 60)
                assert (await stacks_of(tmp_path / "log", partial(_asked, process))).stack
                assert process.returncode is None
            finally:
                with anyio.CancelScope(shield=True), suppress(ProcessLookupError):
                    process.kill()
                    await process.wait()
                group.cancel_scope.cancel()
    reports = {index: finished.report for index, finished in buffer.finished.items()}
    assert reports[0].outcome is Outcome.DONE
    for number, (kind, where) in enumerate(cases, start=1):
        report = reports[number]
        if where == "callback":  # nobody awaits a callback: its error is no episode's
            assert report.outcome is Outcome.DONE
            continue
        assert report.outcome is Outcome.ENV_ERROR, (kind, where)
        assert kind in str(report.error), (kind, where, report.error)
    assert "user code raised SystemExit: on purpose" in (tmp_path / "log").read_text()
