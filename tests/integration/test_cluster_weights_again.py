"""An engine or the router comes back, and the learner that has the weights may have ended: whoever
trains on has them handed out, whoever has ended is started again to do it. Over real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import pytest
from aiohttp import web

from agentrl.cluster.events import RunState
from agentrl.cluster.host import ExitNotice, ProcessOrder
from agentrl.cluster.kinds import Consequence, ProcessKind
from agentrl.cluster.placement import Cluster
from agentrl.cluster.requests import Requests
from agentrl.cluster.restarts import Processes
from agentrl.cluster.spec import ModelFacts, RunSpec
from agentrl.config.run import RunConfig
from agentrl.types import EngineAddress
from agentrl.wire.messages import Message, Republish
from agentrl.wire.peer import BufferPeer

pytestmark = pytest.mark.anyio

RANKS = ("learner-0", "learner-1")


def kind_of(name: str) -> ProcessKind:
    return cast(ProcessKind, name.partition("-")[0])


class Site:
    """Processes on paper, and one address where a router and its engines answer."""

    def __init__(self) -> None:
        self.url = ""
        self.routed: set[str] = set()
        self.router_answers = True
        self.running: dict[str, int] = {}
        self.started: list[str] = []
        self.told: list[Message] = []
        self.state = RunState()
        self.requests = Requests(cast(BufferPeer, self), self.state)

    # ---- the cluster ----

    def start(self, order: ProcessOrder) -> int:
        self.started.append(order.name)
        self.running[order.name] = 100 + len(self.started)
        return self.running[order.name]

    def stop(self, names: list[str], grace_s: float) -> None:
        for name in names:
            self.running.pop(name, None)

    # ---- the buffer ----

    async def deliver(self, message: Message) -> int:
        self.told.append(message)
        return len(self.told)

    # ---- the router ----

    async def workers(self, request: web.Request) -> web.Response:
        if not self.router_answers:
            return web.Response(status=503)
        known = [{"id": url, "url": url, "is_healthy": True} for url in sorted(self.routed)]
        return web.json_response({"workers": known})

    async def remove(self, request: web.Request) -> web.Response:
        self.routed.discard(request.match_info["url"])
        return web.json_response({})

    async def alive(self, request: web.Request) -> web.Response:
        return web.Response()

    def engine(self, index: int) -> str:
        return f"{self.url}/engine-{index}"

    # ---- what happens ----

    async def all_start(self, processes: Processes) -> None:
        for name in processes.names:
            await processes.start(name)
        self.routed = {self.engine(0), self.engine(1)}
        self.started.clear()

    def learner_ends(self) -> None:
        for rank in RANKS:
            del self.running[rank]
        self.state.learner_done = True

    async def dies(self, processes: Processes, name: str) -> None:
        """It ends, and is started again."""
        kind = Consequence.RESTART_ROUTER if name == "router" else Consequence.RESTART_ENGINE
        if name == "router":
            self.routed = set()
        notice = ExitNotice(name, self.running.pop(name), -9, False, kind_of(name))
        await processes.restart(notice, kind)


@asynccontextmanager
async def site() -> AsyncIterator[tuple[Site, Processes]]:
    """Two engines and a learner of two ranks, all running."""
    there = Site()
    app = web.Application()
    app.router.add_get("/workers", there.workers)
    app.router.add_delete("/workers/{url:.*}", there.remove)
    app.router.add_get("/alive", there.alive)
    runner = web.AppRunner(app)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    there.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    spec = RunSpec(
        config=RunConfig(),
        run_dir="/runs/r",
        model_dir="m",
        model=ModelFacts(9, 9),
        buffer_address="ipc://b",
        router_url=there.url,
        engines=[EngineAddress(f"engine-{i}", there.engine(i)) for i in range(2)],
        services={},
        master_address="",
        master_port=0,
        collective_address="",
    )
    names = ("engine-0", "engine-1", *RANKS, "router")
    processes = Processes(
        cast(Cluster, there),
        spec,
        [
            ProcessOrder(
                name,
                (name,),
                kind_of(name),
                ready_url="" if name in RANKS else f"{there.url}/alive",
            )
            for name in names
        ],
        there.requests,
        there.state,
    )
    try:
        with anyio.fail_after(300):
            await there.all_start(processes)
            yield there, processes
    finally:
        await runner.cleanup()


async def test_a_learner_that_trains_is_told_and_left_alone() -> None:
    async with site() as (there, processes):
        await there.dies(processes, "engine-0")
        assert there.engine(0) not in there.routed
        assert there.started == ["engine-0"]
        assert there.told == [Republish(1)]
        await there.dies(processes, "router")
        assert there.told == [Republish(1), Republish(2)]


async def test_a_buffer_that_restarted_hears_again_what_may_be_owed_and_no_more() -> None:
    async with site() as (there, processes):
        await there.requests.ask_again()
        assert there.told == []
        await there.dies(processes, "engine-0")
        await there.requests.ask_again()
        assert there.told == [Republish(1)] * 2
        there.learner_ends()
        await there.dies(processes, "engine-1")
        await there.requests.ask_again()
        assert there.told == [Republish(1)] * 2, "the first push of a new learner is the answer"


@pytest.mark.parametrize("name", ["engine-0", "router"])
async def test_a_learner_that_has_ended_is_started_again_for_whoever_comes_back(name: str) -> None:
    async with site() as (there, processes):
        there.learner_ends()
        await there.dies(processes, name)
        assert there.started == [name, *RANKS]
        assert not there.state.learner_done
        assert there.told == []


async def test_one_start_is_enough_for_two_that_come_back_at_once() -> None:
    async with site() as (there, processes):
        there.learner_ends()
        async with anyio.create_task_group() as both:
            both.start_soon(there.dies, processes, "engine-0")
            both.start_soon(there.dies, processes, "engine-1")
        assert there.started.count("learner-0") == 1


@pytest.mark.parametrize(
    ("name", "routed", "answers", "begins_again"),
    [
        ("engine-0", (0, 1), True, False),
        ("engine-0", (1,), True, True),
        ("engine-0", (0,), True, False),  # the other fell out of a push, and has been given up
        ("router", (0, 1), True, False),
        ("router", (0,), True, True),
        ("engine-0", (0, 1), False, True),
    ],
)
async def test_what_a_learner_was_told_on_its_last_breath_is_not_forgotten(
    name: str, routed: tuple[int, ...], answers: bool, begins_again: bool
) -> None:
    async with site() as (there, processes):
        await there.dies(processes, name)
        there.started.clear()
        there.routed = {there.engine(i) for i in routed}
        there.router_answers = answers
        there.learner_ends()
        await processes.learner_ended()
        assert there.started == ([*RANKS] if begins_again else [])
        assert there.state.learner_done is not begins_again


async def test_the_end_of_a_learner_that_owes_nothing_starts_nothing() -> None:
    async with site() as (there, processes):
        there.routed = set()
        there.learner_ends()
        await processes.learner_ended()
        assert there.started == []


async def test_a_rank_of_an_earlier_life_is_known_as_such() -> None:
    async with site() as (there, processes):
        first = ExitNotice("learner-1", there.running["learner-1"], 0, False, "learner")
        assert processes.learner_life(first) == 1
        there.learner_ends()
        await there.dies(processes, "engine-0")
        assert processes.learner_life(first) is None
        second = ExitNotice("learner-1", there.running["learner-1"], 0, False, "learner")
        assert processes.learner_life(second) == 2
