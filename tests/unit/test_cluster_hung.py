"""Engines whose process lives and whose scheduler does not answer: who is killed, and when."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import cast

import anyio
import pytest

from agentrl.clock import MonotonicClock
from agentrl.cluster.events import RunState
from agentrl.cluster.hung import Hung, HungWatch, Look, limit_of
from agentrl.config.run import RunConfig
from agentrl.telemetry.recorder import Recorder
from agentrl.types import EngineAddress


def test_who_does_not_answer_for_the_limit_is_killed_once_and_counts_from_its_next_answer() -> None:
    hung = Hung(limit_s=120.0)
    answers = {0, 150}
    due = {
        now: hung.looked({"engine-0": "answers" if now in answers else "silent"}, now)
        for now in range(0, 301, 10)
    }
    assert {now: names for now, names in due.items() if names} == {
        120: ["engine-0"],
        270: ["engine-0"],
    }


def test_an_engine_that_hangs_before_the_first_look_is_killed_too() -> None:
    hung = Hung(limit_s=30.0)
    assert [hung.looked({"engine-0": "silent"}, now) for now in (0, 20, 40)] == [
        [],
        [],
        ["engine-0"],
    ]


def test_an_answer_begins_the_count_anew() -> None:
    hung = Hung(limit_s=30.0)
    for now in range(0, 300, 10):
        look: Look = "answers" if now % 20 == 0 else "silent"
        assert hung.looked({"engine-0": look, "engine-1": look}, now) == []


def test_an_engine_that_starts_may_listen_and_say_nothing_for_as_long_as_it_needs() -> None:
    hung = Hung(limit_s=30.0)
    silent: list[Look] = ["silent"] * 20
    looks: list[Look] = ["answers", "away", *silent]
    assert [hung.looked({"engine-0": look}, 10 * n) for n, look in enumerate(looks)] == [[]] * 22


def test_an_engine_may_load_weights_for_as_long_as_a_push_may_take() -> None:
    assert limit_of(RunConfig(call_timeout_s=10, update_weights_timeout=600)) == 620
    assert limit_of(RunConfig(call_timeout_s=80, update_weights_timeout=30)) == 480


def test_a_forward_pass_may_take_as_long_as_the_engine_s_own_watchdog_lets_it() -> None:
    assert limit_of(RunConfig(call_timeout_s=10, sglang={"watchdog_timeout": 3600})) == 3620


SERVER = """
import http.server, os
class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def engine() -> Iterator[tuple[subprocess.Popen[str], EngineAddress]]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield process, EngineAddress("engine-0", f"http://127.0.0.1:{port}")
        process.kill()


class Notes:
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.anyio
async def test_a_stopped_engine_is_killed_and_one_that_has_ended_is_not(
    engine: tuple[subprocess.Popen[str], EngineAddress],
) -> None:
    process, address = engine
    gone = EngineAddress("engine-1", "http://127.0.0.1:9")
    state, notes, ended = RunState(), Notes(), anyio.Event()
    num_looks = count(1)
    state.version = 0

    async def kill(name: str) -> bool:
        assert name == "engine-0"
        assert process.poll() is None
        process.kill()
        ended.set()
        return True

    async with anyio.create_task_group() as group:
        recorder, clock = cast(Recorder, notes), MonotonicClock()

        def engines() -> list[EngineAddress]:
            if next(num_looks) == 3:  # it has answered twice
                os.kill(process.pid, signal.SIGSTOP)
            return [address, gone]

        watch = HungWatch(engines, state, recorder, kill, clock, limit_s=2.4, key="k")
        group.start_soon(watch.run)
        with anyio.fail_after(120):
            await ended.wait()
        while not notes.said:  # noqa: ASYNC110 - the watch tells nobody but the recorder
            await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert process.wait(60) == -signal.SIGKILL
    (said,) = notes.said
    assert said.startswith("engine-0 did not answer for 2.4 s, and its process is there")


@pytest.mark.anyio
async def test_an_engine_that_answers_is_left_alone(
    engine: tuple[subprocess.Popen[str], EngineAddress],
) -> None:
    state, num_looks, seen = RunState(), 0, anyio.Event()
    state.version = 0

    def engines() -> list[EngineAddress]:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 14:  # a look takes a twelfth of the limit
            seen.set()
        return [engine[1]]

    async def kill(name: str) -> bool:
        raise AssertionError(name)

    watch = HungWatch(
        engines, state, cast(Recorder, Notes()), kill, MonotonicClock(), limit_s=6.0, key=None
    )
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        with anyio.fail_after(120):
            await seen.wait()
        group.cancel_scope.cancel()
