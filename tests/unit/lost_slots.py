"""A run on paper whose slots are lost and placed again."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgspec
import pytest

from agentrl.cluster import rescheduling
from agentrl.cluster.engine_parts import engine_of
from agentrl.cluster.events import RunState
from agentrl.cluster.host import ExitNotice, ProcessOrder
from agentrl.cluster.layout import RunDir
from agentrl.cluster.placement import Cluster
from agentrl.cluster.requests import Requests
from agentrl.cluster.restarts import Processes
from agentrl.cluster.slots import NodePlace
from agentrl.cluster.spec import RunSpec
from agentrl.cluster.watch import Watch
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError, InfrastructureError, SlotLostError
from agentrl.telemetry.recorder import Recorder
from agentrl.types import EngineAddress
from agentrl.wire.messages import Republish
from agentrl.wire.peer import BufferPeer
from tests.unit.test_cluster_restarts import SPEC, PaperCluster, Told

__all__ = ["SLOTS", "Nodes", "World", "ended", "quick"]

SLOTS: dict[str, Sequence[str]] = {
    "host": ("buffer", "router", "worker-0"),
    "learner-0": ("learner-0",),
    "learner-1": ("learner-1",),
    "engine-0": ("engine-0",),
    "engine-1": ("engine-1",),
    "workers-1": ("worker-1",),
}


def kind_of(name: str) -> str:
    """The kind of a process of that name."""
    if name.startswith("search"):
        return "node-service"
    return "eval-engine" if name.startswith("eval-") else name.partition("-")[0]


class Nodes(PaperCluster):
    """Slots of which some are `lost` at the first look. `places`: how often Ray is asked for each
    before it has room, which it has when the run knows of all that are lost (`known`); `lacking`:
    how often a new node is found to lack something; `refusing`: how often one cannot be written
    to. `uses`: the copies of services that agent workers use; `ports`: those given to processes
    that are not as usual, `held`: those that processes keep; `there`: where places are given."""

    def __init__(
        self, lost: Sequence[str], places: Mapping[str, int], slots: dict[str, Sequence[str]]
    ) -> None:
        super().__init__()
        self.lost, self.slots_of = set(lost), slots
        self.asked_for = dict(places)
        self.lacking = self.refusing = 0
        self.uses: dict[str, list[str]] = {}
        self.ports: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.there = "10.0.0.9"
        self.known: Callable[[], set[str]] = set
        self.written: list[RunSpec] = []
        self.address = dict.fromkeys(slots, "10.0.0.2")
        self.stopped: list[set[str]] = []
        self.ends: list[ExitNotice] = []

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
        here = [end for end in self.ends if end.name in self.slots_of[slot]]
        self.ends = [end for end in self.ends if end not in here]
        return here

    def signal(self, name: str, number: int, pid: int | None = None) -> bool:
        if not super().signal(name, number, pid) or pid is None:
            return False
        self.ends.append(ExitNotice(name, pid, -number, False, cast(Any, kind_of(name))))
        return True

    def place_again(self, slot: str, timeout_s: float) -> NodePlace | None:
        assert slot in self.lost
        if not {name for each in self.lost for name in self.slots_of[each]} <= self.known():
            return None
        if self.refusing > 0:
            self.refusing -= 1
            raise EnvironmentSetupError(f"{slot} on 10.0.0.8: PermissionError: /r")
        self.asked_for[slot] = self.asked_for.get(slot, 10**9) - 1
        if self.asked_for[slot] > 0:
            return None
        self.lost.discard(slot)
        self.address[slot] = self.there
        return NodePlace(self.there, "n9")

    def copies_for(self, worker: str) -> list[str]:
        return self.uses.get(worker, [])

    def port_held(self, process: str) -> int | None:
        return self.held.get(process)

    def places(self) -> dict[str, NodePlace]:
        return {slot: NodePlace(address) for slot, address in self.address.items()}

    def address_of(self, process: str) -> str:
        (slot,) = [slot for slot, names in self.slots_of.items() if process in names]
        return self.address[slot]

    def reserve_port(self, process: str) -> int:
        return self.ports.get(process) or 7000 + int(process[-1])

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
                cast(Any, kind_of(name)),
            )
            for name in names
        ]
        engines = [
            EngineAddress(name, urls[name])
            for name in names
            if name.startswith("engine") and name == engine_of(name)
        ]
        of_evaluations = [
            EngineAddress(name, urls[name], "evaluation")
            for name in names
            if name.startswith("eval-engine")
        ]
        config = RunConfig(**flags)
        spec = msgspec.structs.replace(
            SPEC,
            config=config,
            engines=engines,
            eval_engines=of_evaluations,
            master_address="10.0.0.2",
            master_port=5,
        )
        state = RunState()
        requests = Requests(cast(BufferPeer, self.peer), state)
        self.processes = Processes(cast(Cluster, self.cluster), spec, orders, requests, state)
        self.cluster.known = lambda: self.processes.roster.lost
        self.processes.unroute = self._unroute  # type: ignore[method-assign]
        notes = SimpleNamespace(note=self.said.append)
        run = SimpleNamespace(
            spec="spec", log=lambda name: f"{name}.log", log_tail=lambda name: "    its last line"
        )
        parts: Any = (run, self.cluster, self.processes, requests, state, notes)
        self._watch = Watch(
            *cast(tuple[RunDir, Cluster, Processes, Requests, RunState, Recorder], parts)
        )
        self._names = names

    def stepped(self, number: int) -> None:
        """Iteration `number` was made."""
        self._watch.stepped(number)

    def end(self, *names: str) -> None:
        """These end by themselves, where they run."""
        for name in names:
            if (pid := self.cluster.running.pop(name, None)) is not None:
                kind = cast(Any, kind_of(name))
                self.cluster.ends.append(ExitNotice(name, pid, 1, False, kind))

    def never_ready(self, name: str) -> None:
        """A port at which nobody answers is where `name` is to say that it is ready."""
        orders = self.processes.roster.orders
        orders[name] = msgspec.structs.replace(orders[name], ready_url="http://127.0.0.1:9/health")

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
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a cluster on paper, which lacks nothing unless it says so."""
    monkeypatch.setattr(rescheduling, "_PAUSE_S", 0.01)
    monkeypatch.setattr(rescheduling, "_LOOK_S", 0.01)

    def lacks_of(cluster: Nodes, config: RunConfig, slot: str) -> list[str]:
        cluster.lacking -= 1
        return ["10.0.0.9 does not have /model"] if cluster.lacking >= 0 else []

    monkeypatch.setattr(rescheduling, "lacks_of", lacks_of)


def ended(world: World, until: Callable[[World], bool] = lambda w: False) -> str:
    with pytest.raises(ExceptionGroup) as group:
        world.run(until)
    error: BaseException = group.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, InfrastructureError | EnvironmentSetupError)
    return str(error)
