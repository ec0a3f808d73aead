"""A lost slot is placed again: what starts there, who hears of new addresses, and how long a run
waits for what it cannot go on without."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgspec
import pytest

from agentrl.cluster import rescheduling
from agentrl.cluster.engine_parts import engine_of
from agentrl.cluster.events import RunState
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.layout import RunDir
from agentrl.cluster.moving import at_url
from agentrl.cluster.placement import Cluster
from agentrl.cluster.requests import Requests
from agentrl.cluster.restarts import Processes
from agentrl.cluster.slots import NodePlace
from agentrl.cluster.spec import RunSpec
from agentrl.cluster.watch import Watch
from agentrl.config.run import RunConfig
from agentrl.errors import InfrastructureError, SlotLostError
from agentrl.serving.launch import engine_command
from agentrl.telemetry.recorder import Recorder
from agentrl.types import EngineAddress
from agentrl.wire.messages import PeerLost, Republish
from agentrl.wire.peer import BufferPeer
from tests.unit.test_cluster_restarts import SPEC, PaperCluster, Told

SLOTS: dict[str, Sequence[str]] = {
    "host": ("buffer", "router", "worker-0"),
    "learner-0": ("learner-0",),
    "learner-1": ("learner-1",),
    "engine-0": ("engine-0",),
    "engine-1": ("engine-1",),
    "workers-1": ("worker-1",),
}


class Nodes(PaperCluster):
    """Slots of which some are `lost` at the first look. `places`: how often Ray is asked for each
    before it has room; `lacking`: how often a new node is found to lack something."""

    def __init__(
        self, lost: Sequence[str], places: Mapping[str, int], slots: dict[str, Sequence[str]]
    ) -> None:
        super().__init__()
        self.lost, self.slots_of = set(lost), slots
        self.asked_for = dict(places)
        self.lacking = 0
        self.written: list[RunSpec] = []
        self.address = dict.fromkeys(slots, "10.0.0.2")
        self.stopped: list[set[str]] = []

    def write_file(self, path: str, data: bytes) -> None:
        assert path == "spec"
        self.written.append(msgspec.json.decode(data, type=RunSpec))

    def slots(self) -> list[str]:
        return list(self.slots_of)

    def processes(self, slot: str) -> list[str]:
        return list(self.slots_of[slot])

    def next_exits(self, slot: str, timeout_s: float) -> list[Any]:
        if slot in self.lost:
            raise SlotLostError(f"{slot} on {self.address[slot]} is lost")
        return []

    def place_again(self, slot: str, timeout_s: float) -> NodePlace | None:
        assert slot in self.lost
        self.asked_for[slot] = self.asked_for.get(slot, 10**9) - 1
        if self.asked_for[slot] > 0:
            return None
        self.lost.discard(slot)
        self.address[slot] = "10.0.0.9"
        return NodePlace("10.0.0.9", "n9")

    def places(self) -> dict[str, NodePlace]:
        return {slot: NodePlace(address) for slot, address in self.address.items()}

    def address_of(self, process: str) -> str:
        (slot,) = [slot for slot, names in self.slots_of.items() if process in names]
        return self.address[slot]

    def reserve_port(self, process: str) -> int:
        return 7000 + int(process[-1])

    def start(self, order: ProcessOrder) -> int:
        (slot,) = [slot for slot, names in self.slots_of.items() if order.name in names]
        if slot in self.lost:
            raise SlotLostError(f"{slot} is lost")
        return super().start(order)

    def stop(self, names: list[str], grace_s: float) -> None:
        self.stopped.append(set(names))
        super().stop(names, grace_s)


class World:
    """A run on paper: what it says, what the buffer hears, what starts and what loses its route."""

    def __init__(
        self,
        *lost: str,
        places: Mapping[str, int],
        slots: dict[str, Sequence[str]] = SLOTS,
        **flags: Any,
    ) -> None:
        self.cluster, self.peer = Nodes(lost, places, slots), Told()
        self.said: list[str] = []
        self.unrouted: list[str] = []
        names = [name for group in slots.values() for name in group]
        urls = {name: f"http://10.0.0.2:{6000 + i}" for i, name in enumerate(names)}
        orders = [
            ProcessOrder(
                name,
                ("e", "--host", "10.0.0.2", "--port", urls[name][-4:]),
                cast(Any, name.partition("-")[0]),
            )
            for name in names
        ]
        engines = [
            EngineAddress(name, urls[name])
            for name in names
            if name.startswith("engine") and name == engine_of(name)
        ]
        config = RunConfig(**flags)
        spec = msgspec.structs.replace(
            SPEC, config=config, engines=engines, master_address="10.0.0.2", master_port=5
        )
        state = RunState()
        requests = Requests(cast(BufferPeer, self.peer), state)
        self.processes = Processes(cast(Cluster, self.cluster), spec, orders, requests, state)
        self.processes.unroute = self._unroute  # type: ignore[method-assign]
        notes = SimpleNamespace(note=self.said.append)
        run = SimpleNamespace(spec="spec")
        parts: Any = (run, self.cluster, self.processes, requests, state, notes)
        self._watch = Watch(
            *cast(tuple[RunDir, Cluster, Processes, Requests, RunState, Recorder], parts)
        )
        self._names = names

    async def _unroute(self, name: str) -> None:
        self.unrouted.append(name)

    def run(self, until: Callable[["World"], bool]) -> None:
        """Start everything, and watch until that is so."""

        async def watch() -> None:
            lost, self.cluster.lost = self.cluster.lost, set()
            for name in self._names:
                await self.processes.start(name)
            self.cluster.started.clear()
            self.cluster.lost = lost
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch.run)
                with anyio.fail_after(30):
                    while not until(self):  # noqa: ASYNC110 - nobody signals it on paper
                        await anyio.sleep(0.01)
                group.cancel_scope.cancel()

        anyio.run(watch)

    @property
    def started(self) -> list[str]:
        return [order.name for order in self.cluster.started]

    @property
    def asked(self) -> list[Republish]:
        return [message for message in self.peer.messages if isinstance(message, Republish)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a cluster on paper, which lacks nothing unless it says so."""
    monkeypatch.setattr(rescheduling, "_PAUSE_S", 0.01)
    monkeypatch.setattr(rescheduling, "_LOOK_S", 0.01)

    def lacks_of(cluster: Nodes, config: RunConfig, slot: str) -> list[str]:
        cluster.lacking -= 1
        return ["10.0.0.9 does not have /model"] if cluster.lacking >= 0 else []

    monkeypatch.setattr(rescheduling, "lacks_of", lacks_of)


def test_an_engine_starts_again_at_a_new_address_and_everybody_hears_of_it() -> None:
    world = World("engine-1", places={"engine-1": 3})
    world.run(lambda w: bool(w.asked))
    here, there = EngineAddress("engine-0", "http://10.0.0.2:6005"), "http://10.0.0.9:7001"
    assert world.unrouted == ["engine-1"]
    (order,) = world.cluster.started
    assert order.argv == ("e", "--host", "10.0.0.9", "--port", "7001")
    assert [[e.name for e in spec.engines] for spec in world.cluster.written] == [
        ["engine-0"],
        ["engine-0", "engine-1"],
    ]
    both = [here, EngineAddress("engine-1", there)]
    assert world.cluster.written[-1].engines == both == world.processes.spec.engines
    assert world.asked == [Republish(1, both)]
    lost, back = world.said
    assert lost == (
        "engine-1 on 10.0.0.2 is lost, with engine-1; the run goes on with worker-0, engine-0, "
        "worker-1"
    )
    assert back == f"engine-1 is placed again on 10.0.0.9: engine-1 ({there}) starts there"


def test_workers_start_again_and_nobody_is_asked_for_weights() -> None:
    world = World("workers-1", places={"workers-1": 1})
    world.run(lambda w: len(w.said) == 2)
    assert world.started == ["worker-1"]
    assert [type(message) for message in world.peer.messages] == [PeerLost]
    assert world.said[-1] == "workers-1 is placed again on 10.0.0.9: worker-1 starts there"


def test_a_node_that_lacks_something_is_told_of_once_and_waited_for() -> None:
    world = World("workers-1", places={"workers-1": 1})
    world.cluster.lacking = 3
    world.run(lambda w: len(w.said) == 3)
    assert world.said[1] == (
        "workers-1 has a place on 10.0.0.9, and waits: 10.0.0.9 does not have /model"
    )
    assert world.started == ["worker-1"]


def test_a_slot_that_is_lost_again_is_placed_again() -> None:
    world = World("engine-1", places={"engine-1": 1})

    def again_and_again(w: World) -> bool:
        if len(w.said) == 2 and "engine-1" in w.started:
            w.cluster.lost.add("engine-1")
        return len(w.said) == 4

    world.run(again_and_again)
    assert world.started == ["engine-1"] * 2
    assert world.said[2].startswith("engine-1 on 10.0.0.9 is lost, with engine-1; ")


def test_a_rank_of_the_learner_is_waited_for_and_all_of_them_start_again() -> None:
    """The others end at once; those that meet at the address of the first are told the new one."""
    world = World("learner-0", places={"learner-0": 5})
    world.run(lambda w: len(w.started) == 2)
    assert world.cluster.stopped[0] == {"learner-0", "learner-1"}
    assert world.started == ["learner-0", "learner-1"]
    spec = world.cluster.written[-1]
    assert (spec.master_address, spec.master_port) == ("10.0.0.9", 7000)
    assert spec.collective_address == "10.0.0.9"
    lost, back = world.said
    assert lost == (
        "learner-0 on 10.0.0.2 is lost, with learner-0; the run waits up to 300 s (--node-wait-s) "
        "for another node with room for it"
    )
    assert back == "learner-0 is placed again on 10.0.0.9: learner-0 starts there"


def test_ranks_start_once_the_last_of_them_has_a_place() -> None:
    world = World("learner-0", "learner-1", places={"learner-0": 1, "learner-1": 20})
    world.run(lambda w: len(w.started) == 2)
    assert world.cluster.asked_for["learner-1"] == 0
    assert world.started == ["learner-0", "learner-1"]


def test_engines_on_the_devices_of_the_learner_start_again_with_it() -> None:
    slots: dict[str, Sequence[str]] = {
        "host": ("buffer", "router", "worker-0"),
        "engine-0": ("engine-0", "learner-0"),
        "engine-1": ("engine-1", "learner-1"),
        "workers-1": ("worker-1",),
    }
    lost = ("engine-1", "workers-1")
    world = World(*lost, places=dict.fromkeys(lost, 3), slots=slots, colocate=True)
    world.run(lambda w: len(w.started) == 5)
    both = ["engine-0", "engine-1", "learner-0", "learner-1"]
    assert sorted(world.started) == [*both, "worker-1"]
    (told,) = world.asked
    assert [engine.url for engine in told.engines][1] == "http://10.0.0.9:7001"
    assert any("with worker-1; the run goes on with" in said for said in world.said)


@pytest.mark.parametrize(
    "lost", [("learner-1",), ("engine-0", "engine-1")], ids=lambda lost: lost[0]
)
def test_a_run_that_has_waited_long_enough_ends_and_says_for_what(lost: tuple[str, ...]) -> None:
    error = ended(World(*lost, places={}, node_wait_s=0.05))
    assert "is lost, with" in error
    assert error.endswith(
        "the run cannot go on without, and no node had room for it within 0.05 s (--node-wait-s)"
    )


def test_what_the_node_lacked_that_there_was_is_told_at_the_end() -> None:
    world = World("learner-1", places={"learner-1": 1}, node_wait_s=0.2)
    world.cluster.lacking = 10**9
    assert ended(world).endswith("(--node-wait-s): 10.0.0.9 does not have /model")


def test_the_last_engines_are_waited_for_no_more_once_one_of_them_is_back() -> None:
    world = World("engine-0", "engine-1", places={"engine-0": 1}, node_wait_s=0.1)
    world.run(lambda w: w.cluster.asked_for.get("engine-1", 10**9) < 10**9 - 30)
    assert world.started == ["engine-0"]


def test_the_last_engines_are_not_missed_any_more_once_another_is_back() -> None:
    """Whatever else the run waits for by then has a time of its own."""
    world = World(places={})

    async def run() -> None:
        made = world.processes
        assert made.left_without(["engine-0"]) is not None
        assert made.left_without(["engine-1"]) is None
        await made.come_back(["engine-0"], "spec")
        assert made.left_without(["learner-1"]) is None
        assert made.can_go_on_without(["engine-1"])
        assert not made.can_go_on_without(["learner-1"])

    anyio.run(run)


def ended(world: World) -> str:
    with pytest.raises(ExceptionGroup) as group:
        world.run(lambda w: False)
    error: BaseException = group.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, InfrastructureError)
    return str(error)


def test_a_restart_of_the_learner_waits_for_a_rank_whose_node_is_lost() -> None:
    world = World(places={})

    async def run() -> None:
        made = world.processes
        for rank in ("learner-0", "learner-1"):
            await made.start(rank)
        assert made.left_without(["learner-1"]) is None
        assert not made.can_go_on_without(["learner-1"])
        await made.tell_lost(["learner-1"], "spec")
        world.cluster.started.clear()
        made._state.learner_done = True
        await made.ask_for_weights("engine-0")
        assert world.started == []

    anyio.run(run)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_command_of_an_engine_at_another_address_is_the_one_that_it_would_have_had(
    device: Any,
) -> None:
    def order(host: str, port: int) -> ProcessOrder:
        command = engine_command(
            model_path="/m",
            port=port,
            name="engine-0",
            device=device,
            extra={"tp_size": 2},
            dtype="auto",
            host=host,
            environ={},
        )
        url = f"http://{host}:{port}"
        return ProcessOrder("engine-0", command.argv, "engine", ready_url=f"{url}/health")

    first, second = order("10.0.0.2", 6000), order("10.0.0.31", 7)
    assert first != second
    assert at_url(first, "http://10.0.0.2:6000", "http://10.0.0.31:7") == second
