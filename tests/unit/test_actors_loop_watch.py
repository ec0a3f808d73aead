"""User code that holds the event loop of a worker is named, once."""

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from agentrl.actors.loop_watch import LoopWatch
from agentrl.actors.worker_loop import WorkerLoop
from agentrl.envs.env import Env
from agentrl.envs.registry import load_env

BLOCKING = """\
import sys

from agentrl import Env, Message


class Slow(Env):
    async def reset(self, *, seed, task):
        return [Message.user("Hello.")]

    async def score(self, text):
        return helper(text)


def helper(text):
    assert sys.told.wait(500)
    return 1.0
"""


@pytest.fixture
def told() -> Iterator[threading.Event]:
    """Is set by the first warning: what holds the loop waits for it."""
    event = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: event.set()  # type: ignore[method-assign]
    log = logging.getLogger("agentrl.actors.loop_watch")
    log.addHandler(handler)
    sys.told = event  # type: ignore[attr-defined]
    yield event
    log.removeHandler(handler)


def scored(env: Env, held_s: float, times: int = 1) -> None:
    async def score() -> None:
        async with LoopWatch(held_s):
            for _ in range(times):
                assert await asyncio.ensure_future(env.score("text")) == 1.0

    anyio.run(score, backend_options={"loop_factory": WorkerLoop})


def test_a_reward_that_holds_the_loop_is_named_once(
    told: threading.Event, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine.py").write_text(BLOCKING)
    scored(load_env(f"{tmp_path}/mine.py:Slow")(), 0.1, times=3)
    (record,) = caplog.records
    said = record.getMessage()
    assert "it stands in Slow.score (" in said
    assert "mine.py:11), at helper (" in said
    assert "every episode of this worker waits: await an async library" in said


def test_a_loop_that_is_left_to_the_others_is_not_told(
    told: threading.Event, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_thread = "import anyio; return await anyio.to_thread.run_sync(helper, text)"
    (tmp_path / "mine.py").write_text(BLOCKING.replace("return helper(text)", in_thread))
    threading.Timer(0.1, told.set).start()
    scored(load_env(f"{tmp_path}/mine.py:Slow")(), 60.0)
    assert not caplog.records
    assert not [each for each in threading.enumerate() if each.name == "loop-watch"]
