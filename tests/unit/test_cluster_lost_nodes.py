"""A lost node: what a run goes on without, and what it cannot do without."""

from collections.abc import Sequence
from typing import Any, cast

import anyio
import msgspec
import pytest

from agentrl.cluster.engine_parts import engine_of
from agentrl.cluster.events import RunState
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.layout import RunDir
from agentrl.cluster.placement import Cluster
from agentrl.cluster.requests import Requests
from agentrl.cluster.restarts import Processes
from agentrl.cluster.spec import RunSpec
from agentrl.cluster.watch import Watch
from agentrl.config.run import RunConfig
from agentrl.errors import InfrastructureError, SlotLostError
from agentrl.telemetry.recorder import Recorder
from agentrl.types import EngineAddress
from agentrl.wire.messages import PeerLost
from agentrl.wire.peer import BufferPeer
from tests.unit.test_cluster_restarts import SPEC, PaperCluster, Told

SLOTS: dict[str, Sequence[str]] = {
    "host": ("buffer", "worker-0"),
    "learner-0": ("learner-0",),
    "engine-0": ("engine-0",),
    "engine-1": ("engine-1",),
    "engine-1.1": ("engine-1.1",),
    "workers-1": ("worker-1",),
}
NAMES = [name for names in SLOTS.values() for name in names]


class Nodes(PaperCluster):
    """Slots of which some are lost at the first look."""

    def __init__(self, lost: Sequence[str]) -> None:
        super().__init__()
        self._lost = lost
        self.written: list[bytes] = []

    def write_file(self, path: str, data: bytes) -> None:
        assert path == "spec"
        self.written.append(data)

    def slots(self) -> list[str]:
        return list(SLOTS)

    def processes(self, slot: str) -> list[str]:
        return list(SLOTS[slot])

    def next_exits(self, slot: str, timeout_s: float) -> list[Any]:
        if slot in self._lost:
            raise SlotLostError(f"{slot} on 10.0.0.2 is lost")
        return []

    def place_again(self, slot: str, timeout_s: float) -> None:
        """There is no room."""

    def signal(self, name: str, number: int, pid: int | None = None) -> bool:
        raise SlotLostError(f"{name} was there")


class Logs:
    spec = "spec"

    def log(self, name: str) -> str:
        return f"/nowhere/{name}.log"


class Notes:
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, words: str) -> None:
        self.said.append(words)


def watched(*lost: str) -> tuple[list[str], list[str], list[str]]:
    """What is said of a run that loses those slots, which engines lose their route, and which
    workers the buffer hears of. Raises what ends the run."""
    cluster, peer, notes = Nodes(lost), Told(), Notes()
    orders = [ProcessOrder(name, (), cast(Any, name.partition("-")[0])) for name in NAMES]
    state = RunState()
    requests = Requests(cast(BufferPeer, peer), state)
    engines = [EngineAddress(name, f"http://{name}") for name in ("engine-0", "engine-1")]
    config = RunConfig(node_wait_s=0.0)
    spec = msgspec.structs.replace(SPEC, config=config, engines=engines)
    processes = Processes(cast(Cluster, cluster), spec, orders, requests, state)
    unrouted: list[str] = []

    async def unroute(name: str) -> None:
        unrouted.append(name)

    processes.unroute = unroute  # type: ignore[method-assign]
    parts: Any = (Logs(), cluster, processes, requests, state, notes)
    watch = Watch(*cast(tuple[RunDir, Cluster, Processes, Requests, RunState, Recorder], parts))
    heard: list[str] = []

    async def run() -> None:
        for name in NAMES:
            await processes.start(name)
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            told = {"role": "worker", "state": "lost", "name": "worker-1"}
            incarnation = processes._lives["worker-1"].incarnation
            await watch.heard_of(told | {"incarnation": incarnation})  # before Ray tells of it
            while len(cluster.written) < len(lost):
                await anyio.sleep(0.01)
                heard[:] = [m.name for m in peer.messages if isinstance(m, PeerLost)]
            group.cancel_scope.cancel()

    anyio.run(run)
    last = msgspec.json.decode(cluster.written[-1], type=RunSpec)
    assert [engine.name for engine in last.engines] == [e for e in ("engine-0",) if e not in lost]
    lost_engines = {engine_of(name) for name in lost}
    left = {name for name in cluster.running if engine_of(name) in lost_engines}
    assert left == set(lost) & set(cluster.running), "other parts of a lost engine are ended"
    return notes.said, unrouted, heard


@pytest.mark.parametrize("part", ["engine-1", "engine-1.1"])
def test_a_run_goes_on_with_the_engines_and_workers_that_are_left(part: str) -> None:
    said, unrouted, heard = watched(part, "workers-1")
    assert (unrouted, heard) == (["engine-1"], ["worker-1"])
    for name in (part, "workers-1"):
        assert any(f"{name} on 10.0.0.2 is lost, with" in note for note in said)
    assert any(note.endswith("; the run goes on with worker-0, engine-0") for note in said)


@pytest.mark.parametrize(
    "lost", [("learner-0",), ("host",), ("engine-0", "engine-1.1")], ids=lambda lost: lost[0]
)
def test_a_run_ends_without_what_nobody_else_does(lost: tuple[str, ...]) -> None:
    with pytest.raises(ExceptionGroup) as group:
        watched(*lost)
    error: BaseException = group.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, InfrastructureError)
    assert "on 10.0.0.2 is lost, with" in str(error)
    assert str(error).endswith("the run cannot go on without")
