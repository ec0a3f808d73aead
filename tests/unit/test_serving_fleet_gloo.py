"""A fleet over gloo, some of whose engines are gone without a word: their host has lost its cable.
The sender's broadcast waits for them until its deadline; the fleet does not."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import anyio
import pytest
import torch
import torch.distributed as dist
from anyio.from_thread import BlockingPortal, start_blocking_portal
from anyio.to_thread import run_sync
from torch._C._distributed_c10d import ProcessGroupGloo, TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from agentrl.errors import EngineError
from agentrl.serving.buckets import make_buckets
from agentrl.serving.collective import SenderGroup
from agentrl.serving.collective_fleet import CollectiveFleet
from agentrl.serving.http_control import EngineRefusedError
from agentrl.types import EngineAddress

DEADLINE_S = 150.0
#: As long as an engine stays that does not see the end of a broadcast.
STAY_S = 20.0
#: More than the buffers of a connection take.
TENSORS = [("weight", torch.arange(12_000_000, dtype=torch.float32))]


class Engine:
    """One rank of the collective, in this process. `fate` in a broadcast: `""`, `gone`, `refuses`,
    or `stays`: it waits and does not see the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.engine = EngineAddress(name, "")
        self.fate = ""
        self.weight = torch.zeros(0)
        self.failed = ""
        self._group: Any = None
        self._kept: list[Any] = []

    async def init_group(self, **told: Any) -> None:
        self._group = await run_sync(lambda: self._join(**told))

    def _join(self, host: str, port: int, group: str, rank: int, world_size: int, **_: Any) -> Any:
        wait = timedelta(seconds=DEADLINE_S)
        store: Any = TCPStore(host, port, is_master=False, timeout=wait)
        for prefix in (group, f"{group}/", "cpu/"):  # the sender's, and those that torch adds
            store = PrefixStore(prefix, store)
        return ProcessGroupGloo(store, rank, world_size, wait)

    async def receive_bucket(self, **_: Any) -> None:
        if self.fate == "gone":
            raise EngineError(f"{self.name}: its host does not answer")
        if self.fate == "refuses":
            await self.destroy_group("")
            raise EngineRefusedError(f"{self.name}: no", 400)
        if self.fate == "stays":
            await anyio.sleep(STAY_S)
            self.failed = "it was waited for"
            return
        self.weight = await run_sync(self._receive)

    def _receive(self) -> torch.Tensor:
        assert self._group is not None
        found = torch.zeros(48_000_000, dtype=torch.uint8)
        options = dist.BroadcastOptions()
        options.rootRank = 0
        try:
            self._group.broadcast([found], options).wait()
        except RuntimeError as error:
            self.failed = str(error)
            raise EngineError(f"{self.name}: {error}") from error
        return found.view(torch.float32)

    async def destroy_group(self, _name: str) -> None:
        if self.fate == "gone":
            self._kept.append(self._group)  # nobody closes its connections
            raise EngineError(f"{self.name}: its host does not answer")
        self._group = None


class Sender(SenderGroup):
    """Keeps the broadcasts that it has begun, if it is told where, and the names of groups that it
    has closed."""

    kept: list[dist.Work] | None = None
    closed: tuple[str, ...] = ()

    def close(self) -> None:
        super().close()
        Sender.closed += (self.name,)

    def broadcast(self, tensor: torch.Tensor) -> Future[dist.Work]:
        answer = super().broadcast(tensor)
        if self.kept is not None:
            self.kept.append(answer.result())
        return answer


def fleet_of(engines: list[Engine], portal: BlockingPortal, **more: Any) -> CollectiveFleet:
    return CollectiveFleet(
        engines,  # type: ignore[arg-type]
        name="weights",
        portal=portal,
        open_group=lambda name: Sender(
            name, host="127.0.0.1", backend="gloo", timeout_s=DEADLINE_S, connect_s=DEADLINE_S
        ),
        **more,
    )


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with ExitStack() as stack:
        yield stack.enter_context(start_blocking_portal())


@pytest.mark.parametrize(("fate", "left"), [("gone", ["e0"]), ("refuses", ["e0", "e1"])])
def test_a_push_goes_on_without_an_engine_that_leaves_a_broadcast(
    portal: BlockingPortal, fate: str, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dist.Work] = []
    monkeypatch.setattr(Sender, "kept", begun if fate == "gone" else None)
    monkeypatch.setattr(Sender, "closed", ())
    engines = [Engine("e0"), Engine("e1")]
    fleet = fleet_of(engines, portal)
    (bucket,) = make_buckets(TENSORS, 1 << 30)
    fleet.connect()
    engines[1].fate = fate
    fleet.start(bucket, bucket.payload, None)
    fleet.finish()
    connected = [fleet.connected]
    assert Sender.closed == ("weights",), "its engines would wait"
    assert not any(work.is_completed() for work in begun), "it was waited for"
    assert "imed out" not in engines[0].failed, "it was left waiting"
    fleet.repair()
    assert [member.name for member in fleet.members] == left
    if fate == "refuses":
        engines[1].fate = ""
    fleet.connect()
    fleet.start(bucket, bucket.payload, None)
    fleet.finish()
    connected.append(fleet.connected)
    assert connected == [False, True]
    assert all(torch.equal(e.weight, TENSORS[0][1]) for e in engines if e.name in left)
    fleet.dissolve()


@pytest.mark.timeout(120)
def test_an_engine_that_does_not_see_the_end_of_a_broadcast_is_waited_for_no_longer(
    portal: BlockingPortal,
) -> None:
    """As seen of gloo: a receive that begins as the sender closes its group waits on."""
    engines = [Engine("e0"), Engine("e1")]
    fleet = fleet_of(engines, portal, margin_s=0.2)
    (bucket,) = make_buckets(TENSORS, 1 << 30)
    fleet.connect()
    engines[0].fate, engines[1].fate = "stays", "refuses"
    fleet.start(bucket, bucket.payload, None)
    fleet.finish()
    assert not fleet.connected
    assert engines[0].failed == ""
    assert fleet.repair() == {}
    engines[0].fate = engines[1].fate = ""
    fleet.connect()
    fleet.start(bucket, bucket.payload, None)
    fleet.finish()
    assert all(torch.equal(engine.weight, TENSORS[0][1]) for engine in engines)
    fleet.dissolve()
