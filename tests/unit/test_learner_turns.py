"""While rank 0 waits for engines no rank stands in a collective: they wait in turns. Ranks are
threads here."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import anyio
import msgspec
import pytest
import torch
from aiohttp import web
from torch import Tensor

from agentrl.cluster.roles import learner
from agentrl.errors import PushError
from agentrl.learner import beside
from agentrl.learner.publish import publish_weights
from agentrl.types import EngineAddress, PushReport
from tests.collectives import Thread, Threads
from tests.unit.test_cluster_restarts import SPEC

T = TypeVar("T")
NAMES = ("one", "two", "three", "four")
REPORT = PushReport(version=3, pause_s=0.5, total_s=1.0, num_bytes=48, engines=("one",))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are short."""
    monkeypatch.setattr(beside, "TURN_S", 0.01)


class Ranks(Threads):
    """Notes each collective that the last rank has left."""

    def __init__(self, size: int = 2) -> None:
        super().__init__(size)
        self._left = threading.Semaphore(0)

    def gather(self, rank: int, value: Any) -> list[Any]:
        values = super().gather(rank, value)
        if rank == self.size - 1:
            self._left.release()
        return values

    def stand_still(self) -> None:
        """Returns when the last rank has left collectives again and again, while its caller did
        nothing."""
        while self._left.acquire(blocking=False):
            pass  # of what came before
        for _ in range(3 * len(NAMES)):
            if not self._left.acquire(timeout=20):
                self._barrier.abort()
                raise AssertionError("the other rank stands in a collective")


class Backend(Thread):
    """Tensors that all ranks gather together, one by one."""

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for number, name in enumerate(NAMES):
            assert self.gather(name) == [name] * 2, "ranks gather the same tensor"
            yield name, torch.full((4,), float(number))


class Sink:
    """Takes all tensors, and stands still before the one of each number, and after the last."""

    def __init__(self, ranks: Ranks, stops: tuple[int, ...]) -> None:
        self.took: list[list[str]] = []
        self._ranks, self._stops = ranks, stops

    def publish(self, _version: int, tensors: Any) -> PushReport:
        self._take(tensors)
        return REPORT

    def verify(self, tensors: Any) -> None:
        self._take(tensors)

    def _take(self, tensors: Any) -> None:
        self.took.append(took := [])
        walk = iter(tensors)
        for number in range(len(NAMES) + 1):
            if number in self._stops:
                self._ranks.stand_still()
            for name, tensor in [] if number == len(NAMES) else [next(walk)]:
                assert tensor.tolist() == [float(number)] * 4
                took.append(name)
        assert next(walk, None) is None


def on_ranks(ranks: Ranks, play: Callable[[Backend], T]) -> list[T]:
    with ThreadPoolExecutor(ranks.size) as threads:
        return list(threads.map(lambda rank: play(Backend(ranks, rank)), range(ranks.size)))


@pytest.mark.parametrize("stops", [(0,), (1,), (2, 3), (4,), (0, 1, 2, 3, 4)])
def test_ranks_stay_in_no_collective_while_a_push_waits_for_engines(stops: tuple[int, ...]) -> None:
    ranks = Ranks()
    sink = Sink(ranks, stops)

    def play(backend: Backend) -> dict[str, float]:
        mine: Any = sink if backend.is_source else None
        return publish_weights(backend, mine, 3, verify=True, patience_s=0.01)  # type: ignore[arg-type]

    first, second = on_ranks(ranks, play)
    assert first["perf/push_bytes"] == 48
    assert second == {}
    assert sink.took == [list(NAMES)] * 2


def test_a_push_that_fails_half_way_fails_on_every_rank() -> None:
    class Failing(Sink):
        def publish(self, _version: int, tensors: Any) -> PushReport:
            next(iter(tensors))
            raise PushError("no engine is left")

    ranks = Ranks()
    sink: Any = Failing(ranks, ())

    def play(backend: Backend) -> str:
        with pytest.raises(PushError) as error:
            publish_weights(backend, sink if backend.is_source else None, 3)  # type: ignore[arg-type]
        return str(error.value)

    said = "no engine is left"
    assert on_ranks(ranks, play) == [said, f"learner rank 0: {said}"]


def test_what_gathering_raises_ends_the_push_too() -> None:
    """The thread of the push does not wait for tensors that nobody gathers."""
    ended = threading.Event()

    class Broken(Backend):
        def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
            yield "one", torch.ones(4)
            raise RuntimeError("a device is gone")

        def broadcast_bytes(self, data: bytes | None) -> bytes:
            assert data is not None
            return data

    class Waiting(Sink):
        def publish(self, _version: int, tensors: Any) -> PushReport:
            try:
                return super().publish(_version, tensors)
            finally:
                ended.set()

    ranks = Ranks(1)
    with pytest.raises(RuntimeError, match="a device is gone"):
        publish_weights(Broken(ranks, 0), Waiting(ranks, ()), 3)  # type: ignore[arg-type]
    assert ended.wait(60)


def test_ranks_stay_in_no_collective_while_engines_start() -> None:
    """They answer when the other rank has left collectives again and again."""
    ranks = Ranks()
    asked: list[str] = []

    async def model_info(request: web.Request) -> web.Response:
        asked.append(request.path)
        await anyio.to_thread.run_sync(ranks.stand_still)
        return web.json_response({})

    async def play() -> None:
        app = web.Application()
        app.router.add_get("/model_info", model_info)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        engines = [EngineAddress("engine-0", f"http://{host}:{port}")]
        spec = msgspec.structs.replace(SPEC, engines=engines)
        wait = partial(learner.await_engines, spec)
        await anyio.to_thread.run_sync(on_ranks, ranks, wait)
        await runner.cleanup()

    anyio.run(play)
    assert asked
