"""Which process is meant: one that is gone and its successor bear the same name."""

import signal
from collections.abc import Sequence
from typing import Any, cast

import anyio
import msgspec
import pytest

from agentrl.cluster.events import RunState
from agentrl.cluster.host import ExitNotice, ProcessOrder
from agentrl.cluster.kinds import Consequence, ProcessKind
from agentrl.cluster.layout import INCARNATION, RUN_MARK
from agentrl.cluster.placement import Cluster
from agentrl.cluster.requests import Requests
from agentrl.cluster.restarts import Processes
from agentrl.cluster.spec import ModelFacts, RunSpec
from agentrl.config.run import RunConfig
from agentrl.types import EngineAddress, EngineKind
from agentrl.wire.messages import Message, PeerLost
from agentrl.wire.peer import BufferPeer

SPEC = RunSpec(
    config=RunConfig(),
    run_dir="/runs/r",
    model_dir="m",
    model=ModelFacts(9, 9),
    buffer_address="ipc://b",
    router_url=None,
    engines=[],
    services={},
    master_address="",
    master_port=0,
    collective_address="",
)


class PaperCluster:
    """Starts nothing; remembers what it was told, and who would be running."""

    def __init__(self) -> None:
        self.started: list[ProcessOrder] = []
        self.killed: list[int] = []
        self.running: dict[str, int] = {}

    def start(self, order: ProcessOrder) -> int:
        self.started.append(order)
        self.running[order.name] = 100 + len(self.started)
        return self.running[order.name]

    def signal(self, name: str, number: int, pid: int | None = None) -> bool:
        if self.running.get(name) != pid:
            return False
        assert number == signal.SIGKILL
        self.killed.append(self.running.pop(name))
        return True

    def stop(self, names: list[str], grace_s: float) -> None:
        for name in names:
            self.running.pop(name, None)


class Told:
    """The way to the buffer, as far as it is used."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def deliver(self, message: Message) -> int:
        self.messages.append(message)
        return len(self.messages)


def processes(
    *names: str, spec: RunSpec = SPEC, engines: Sequence[str] = ()
) -> tuple[Processes, PaperCluster, Told]:
    cluster, peer = PaperCluster(), Told()
    orders = [
        ProcessOrder("worker-0", ("w",), "worker", {"A": "1"}),
        ProcessOrder("buffer", ("b",), "buffer"),
    ]
    orders += [ProcessOrder(name, ("l",), "learner") for name in names]
    orders += [ProcessOrder(name, ("e",), "engine") for name in engines]
    state = RunState()
    requests = Requests(cast(BufferPeer, peer), state)
    made = Processes(cast(Cluster, cluster), spec, orders, requests, state)
    return made, cluster, peer


def told_of(cluster: PaperCluster, start: int) -> str:
    return cluster.started[start].env[INCARNATION]


async def end(made: Processes, cluster: PaperCluster, name: str) -> None:
    """The process ends, and is started again."""
    pid = cluster.running.pop(name)
    await made.restart(ExitNotice(name, pid, -9, False, "worker"), Consequence.RESTART)


def test_every_process_is_told_of_its_run_and_which_one_of_its_name_it_is() -> None:
    made, cluster, _ = processes()

    async def run() -> None:
        for _ in range(2):
            await made.start("worker-0")

    anyio.run(run)
    assert [order.env.keys() for order in cluster.started] == [{"A", RUN_MARK, INCARNATION}] * 2
    assert told_of(cluster, 0) != told_of(cluster, 1)


def test_what_hangs_is_killed_by_its_name_and_nothing_where_none_runs() -> None:
    made, _, _ = processes()

    async def run() -> list[bool]:
        sent = [await made.signal("worker-0", None, 9)]
        await made.start("worker-0")
        sent.append(await made.signal("worker-0", None, 9))
        return [*sent, await made.signal("worker-0", "another", 9)]

    assert anyio.run(run) == [False, True, False]


def test_the_buffer_hears_which_process_has_ended() -> None:
    made, cluster, peer = processes()

    async def run() -> None:
        await made.start("worker-0")
        await end(made, cluster, "worker-0")

    anyio.run(run)
    assert peer.messages == [PeerLost("worker-0", told_of(cluster, 0))]


def test_a_process_that_was_replaced_is_not_missed_in_its_successor() -> None:
    """The buffer died with it, and heard of the successor first: it says that the name is lost."""
    made, cluster, _ = processes()

    async def run() -> list[Any]:
        await made.start("worker-0")
        await end(made, cluster, "worker-0")
        first, second = told_of(cluster, 0), told_of(cluster, 1)
        return [
            await made.signal("worker-0", first, signal.SIGKILL),
            dict(cluster.running),
            await made.signal("worker-0", second, signal.SIGKILL),
            await made.signal("worker-0", second, signal.SIGKILL),
            await made.signal("stranger", first, signal.SIGKILL),
        ]

    alive = {"worker-0": 102}
    assert anyio.run(run) == [False, alive, True, False, False]
    assert cluster.killed == [102]


@pytest.mark.parametrize("first", ["learner-0", "learner-1"])
def test_the_buffer_hears_of_a_learner_that_ended_and_whether_it_did_by_itself(
    first: str,
) -> None:
    """Whichever rank was first: it is one of them that asks for leases."""
    made, cluster, peer = processes("learner-0", "learner-1")

    async def run() -> None:
        for code in (-9, 70):
            for name in ("learner-0", "learner-1"):
                if name not in cluster.running:
                    await made.start(name)
            notice = ExitNotice(first, cluster.running[first], code, False, "learner")
            await made.restart(notice, Consequence.RESTART_LEARNER)

    anyio.run(run)
    assert len(cluster.started) == 6
    assert peer.messages == [
        PeerLost("learner-0", told_of(cluster, 0), failed=False),
        PeerLost("learner-0", told_of(cluster, 2), failed=True),
    ]


def test_the_successor_of_a_learner_is_not_told_of_in_its_place() -> None:
    """News of a rank that come late: another life of the learner has begun."""
    made, cluster, peer = processes("learner-0", "learner-1")

    async def run() -> None:
        for name in ("learner-0", "learner-1"):
            await made.start(name)
        late = ExitNotice("learner-1", cluster.running["learner-1"], 65, False, "learner")
        first = ExitNotice("learner-0", cluster.running["learner-0"], -9, False, "learner")
        await made.restart(first, Consequence.RESTART_LEARNER)
        peer.messages.clear()
        await made.tell_ended(late)

    anyio.run(run)
    assert peer.messages == []


def test_the_news_of_an_end_that_was_dealt_with_starts_nothing() -> None:
    made, cluster, peer = processes()

    async def run() -> None:
        await made.start("worker-0")
        await made.start("worker-0")
        await made.restart(ExitNotice("worker-0", 101, -9, False, "worker"), Consequence.RESTART)

    anyio.run(run)
    assert len(cluster.started) == 2
    assert peer.messages == []


@pytest.mark.parametrize(
    ("name", "consequence"),
    [
        ("engine-1", Consequence.RESTART_ENGINE),
        ("learner-0", Consequence.RESTART_LEARNER),
    ],
)
def test_who_shares_devices_is_started_again_together(name: str, consequence: Consequence) -> None:
    engines = ["engine-0", "engine-1"]
    spec = msgspec.structs.replace(
        SPEC,
        config=RunConfig(colocate=True),
        router_url="http://127.0.0.1:9",  # nobody is there: it is warned of
        engines=[EngineAddress(engine, f"http://127.0.0.1/{engine}") for engine in engines],
        engine_key_file=None,
    )
    made, cluster, peer = processes("learner-0", "learner-1", spec=spec, engines=engines)
    both = [*engines, "learner-0", "learner-1"]

    async def run() -> None:
        for each in both:
            await made.start(each)
        kind: ProcessKind = "engine" if name.startswith("engine") else "learner"
        notice = ExitNotice(name, cluster.running.pop(name), -9, False, kind)
        await made.restart(notice, consequence)
        await made.restart(notice, consequence)  # told twice

    anyio.run(run)
    assert [order.name for order in cluster.started] == both * 2
    ended = [PeerLost("learner-0", told_of(cluster, 2))] if name == "learner-0" else []
    assert peer.messages == ended


def test_what_is_lost_is_waited_for_no_more() -> None:
    order = ProcessOrder("engine-0", ("e",), "engine", ready_url="http://127.0.0.1:1/health")

    async def run() -> None:
        cluster, peer, state = PaperCluster(), Told(), RunState()
        requests = Requests(cast(BufferPeer, peer), state)
        made = Processes(cast(Cluster, cluster), SPEC, [order], requests, state)
        async with anyio.create_task_group() as group:
            group.start_soon(made.ready, ["engine-0"])
            await anyio.sleep(0.3)
            assert made.left_without(["engine-0"]) is None, "it is the only one"
        await made.ask_for_weights("engine-0")
        assert not peer.messages

    anyio.run(run)


@pytest.mark.parametrize("name", ["engine-0", "engine-0.1"])
def test_a_part_that_ends_takes_the_others_of_its_engine_along(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of those that are left would wait for the lost ones."""
    parts = ["engine-0", "engine-0.1"]
    made, cluster, _ = processes(engines=[*parts, "engine-1"])
    told: list[tuple[str, object]] = []

    async def unroute(engine: str) -> None:
        told.append(("unrouted", engine))

    async def ask(engine: str) -> None:
        told.append(("weights", engine))

    monkeypatch.setattr(made, "unroute", unroute)
    monkeypatch.setattr(made, "ask_for_weights", ask)

    async def run() -> None:
        for each in [*parts, "engine-1"]:
            await made.start(each)
        pids = dict(cluster.running)
        for each in (name, *parts):  # its ranks end with it, and each end is told
            cluster.running.pop(each, None)
            notice = ExitNotice(each, pids[each], 1, False, "engine")
            await made.restart(notice, Consequence.RESTART_ENGINE)

    anyio.run(run)
    assert [order.name for order in cluster.started] == [*parts, "engine-1", *parts]
    assert told == [("unrouted", "engine-0"), ("weights", "engine-0")]


def test_a_run_goes_on_without_engines_of_a_kind_only_where_others_of_it_are_left() -> None:
    """Where prefill is apart, one sort of engines can do nothing without the other."""
    kinds: dict[str, EngineKind] = {"engine-0": "prefill", "engine-1": "decode"}
    kinds["engine-2"] = "decode"
    addresses = [EngineAddress(name, f"http://127.0.0.1/{name}", kinds[name]) for name in kinds]
    spec = msgspec.structs.replace(SPEC, engines=addresses)
    made, _, _ = processes(spec=spec, engines=list(kinds))
    assert made.left_without(["engine-1"]) == ["worker-0", "engine-0", "engine-2"]
    assert made.left_without(["engine-0"]) is None
