"""A fleet over a collective that behaves as NCCL's: nothing fails at the sender when a receiver is
gone, ranks meet inside their first broadcast, and to shut a communicator down waits for ever for
a peer that is gone, and for a broadcast that still sends. No NCCL runs here."""

from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from threading import Event
from typing import Any

import anyio
import pytest
import torch
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentrl.errors import EngineError
from agentrl.serving.buckets import make_buckets
from agentrl.serving.collective_fleet import CollectiveFleet
from agentrl.serving.http_control import EngineRefusedError
from agentrl.types import EngineAddress

TENSORS = [("weight", torch.ones(4))]


class Broadcast:
    """A stream waits for it, and the host does not. `fails`: as where NCCL has seen an error."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails

    def wait(self) -> bool:
        if self._fails:
            raise RuntimeError("NCCL error: unhandled system error")
        return True


class NcclLike:
    """The sender's side. `receivers` take part; one that is gone leaves the kernel waiting."""

    backend, host, port, connect_s, sees_losses = "nccl", "127.0.0.1", 1, 1.0, False

    def __init__(self, name: str, receivers: list["Engine"], noted: list[str]) -> None:
        self.name = name
        self._receivers = receivers
        self._peers: list[Engine] = []
        self._noted = noted
        self._is_sending = False

    def connect(self, _world_size: int) -> None:
        self._peers = list(self._receivers)
        self._noted.append("connect")

    def broadcast(self, _tensor: torch.Tensor) -> Future[Broadcast]:
        answer: Future[Broadcast] = Future()
        self._is_sending = any(engine.dies for engine in self._receivers)
        if not any(engine.refuses for engine in self._receivers):
            answer.set_result(Broadcast(any(engine.errs for engine in self._receivers)))
        return answer

    def close(self) -> None:
        assert not self._is_sending, "it waits for a kernel that never ends"
        assert not any(engine.dies for engine in self._peers), "it waits for a peer that is gone"
        self._peers = []
        self._noted.append("close")

    def abort(self, _answer: Future[Broadcast] | None = None) -> None:
        self._is_sending = False
        self._peers = []
        self._noted.append("abort")


class Engine:
    """Sits in the broadcast for ever where another engine of it is gone, and answers nothing."""

    def __init__(self, name: str, others: list["Engine"]) -> None:
        self.name = name
        self.engine = EngineAddress(name, "")
        self.dies = self.refuses = self.errs = False
        self.is_stuck = Event()
        self._others = others

    async def destroy_group(self, _name: str) -> None:
        if self.dies or self.is_stuck.is_set():
            raise EngineError(f"{self.name} does not answer")

    async def init_group(self, **_: Any) -> None:
        return

    async def receive_bucket(self, **_: Any) -> None:
        if self.dies:
            raise EngineError(f"{self.name} is gone")
        if self.refuses:
            raise EngineRefusedError(f"{self.name} has no memory for NCCL", 400)
        if any(engine.dies for engine in self._others):
            self.is_stuck.set()
            await anyio.sleep_forever()


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal
        with suppress(CancelledError):
            portal.call(portal.stop, True)  # an engine may be stuck for ever


def fleet_of(engines: list[Engine], portal: BlockingPortal, noted: list[str]) -> CollectiveFleet:
    fleet = CollectiveFleet(
        engines,  # type: ignore[arg-type]
        name="weights",
        portal=portal,
        open_group=lambda name: NcclLike(name, fleet.members, noted),  # type: ignore[arg-type,return-value]
        margin_s=0.05,
    )
    return fleet


@pytest.mark.timeout(200)
def test_an_engine_that_is_lost_in_a_broadcast_holds_nobody_back(
    portal: BlockingPortal,
) -> None:
    engines: list[Engine] = []
    engines += [Engine(name, engines) for name in ("e0", "e1")]
    noted: list[str] = []
    fleet = fleet_of(engines, portal, noted)
    fleet.connect()
    (bucket,) = make_buckets(TENSORS, 1024)
    connected = [fleet.connected]
    for engines[1].dies in (False, True):
        fleet.start(bucket, bucket.payload, None)
        fleet.finish()
        connected.append(fleet.connected)
    assert connected == [True, True, False]
    lost = fleet.repair()
    assert {engine.name for engine in lost} == {"e0", "e1"}
    assert fleet.members == []
    assert noted == ["connect", "abort", "abort"]


@pytest.mark.timeout(200)
def test_a_sender_does_not_wait_for_an_engine_that_fails_where_ranks_meet(
    portal: BlockingPortal, caplog: pytest.LogCaptureFixture
) -> None:
    """As seen on a GPU: NCCL lacked memory in the engine, and the sender's call never returned."""
    engine = Engine("e0", [])
    noted: list[str] = []
    fleet = fleet_of([engine], portal, noted)
    (bucket,) = make_buckets(TENSORS, 1024)
    engine.refuses = True
    lost: list[str] = []
    for _ in range(2):
        fleet.connect()
        fleet.start(bucket, bucket.payload, None)
        fleet.finish()
        assert not fleet.connected
        lost += [member.name for member in fleet.repair()]
    assert lost == ["e0"]
    assert noted == ["connect", "abort", "abort"] * 2
    assert "weights failed in a weight push: e0 has no memory for NCCL" in caplog.text


@pytest.mark.timeout(200)
@pytest.mark.parametrize("is_known", [True, False])
def test_an_engine_that_dies_between_pushes_holds_nobody_back(
    portal: BlockingPortal, is_known: bool
) -> None:
    """Known or not: the fleet is built anew for an engine that joins, and ends."""
    engines: list[Engine] = []
    engines += [Engine(name, engines) for name in ("e0", "e1")]
    noted: list[str] = []
    fleet = fleet_of(list(engines), portal, noted)
    fleet.connect()
    engines[1].dies = True
    if is_known:
        fleet.drop(engines[1])  # type: ignore[arg-type]
    else:
        fleet.enlist(Engine("e2", engines))  # type: ignore[arg-type]
    lost = [engine.name for engine in fleet.repair()]
    assert lost == ([] if is_known else ["e1"])
    engines.pop()
    fleet.connect()
    assert fleet.connected
    engines[0].dies = True
    assert [engine.name for engine in fleet.dissolve()] == ["e0"]
    assert noted == ["connect", "abort"] * 2


@pytest.mark.timeout(200)
def test_a_broadcast_that_raises_is_aborted(portal: BlockingPortal) -> None:
    """As where NCCL's own watch has seen a connection break; the engine is gone a moment later."""
    engine = Engine("e0", [])
    noted: list[str] = []
    fleet = fleet_of([engine], portal, noted)
    fleet.connect()
    (bucket,) = make_buckets(TENSORS, 1024)
    engine.errs = True
    fleet.start(bucket, bucket.payload, None)
    while not all(call.done() for call in fleet._transfer[0].values()):
        portal.call(anyio.sleep, 0)
    engine.dies = True
    fleet.finish()
    assert not fleet.connected
    assert [member.name for member in fleet.repair()] == ["e0"]
    assert noted == ["connect", "abort", "abort"]
