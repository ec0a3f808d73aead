"""Whole runs over ipc with the real buffer process, killed and restarted on the way."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import msgspec
import numpy as np
import pytest

from agentrl.buffer import BufferSettings, audit
from agentrl.types import COLUMNS, Fate, GroupRows, LeaseHeader, VersionRow
from agentrl.wire.messages import (
    Event,
    Fetch,
    Lease,
    LeaseRequest,
    NoMoreLeases,
    Published,
    Retire,
    Rows,
    Stepped,
    Welcome,
)
from agentrl.wire.peer import BufferPeer
from tests.integration.buffer_peers import NUM_TASKS, Worker, feed, small_run

pytestmark = pytest.mark.anyio

SERVER = """
import sys
from pathlib import Path
import anyio, msgspec
from agentrl.buffer import BufferSettings, run_buffer
settings = msgspec.json.decode(sys.argv[1], type=BufferSettings)
anyio.run(lambda: run_buffer(settings, Path(sys.argv[2])))
"""


@pytest.fixture
def settings(tmp_path: Path) -> BufferSettings:
    return small_run(tmp_path)


class Server:
    """The buffer as a child process."""

    def __init__(self, settings: BufferSettings, run_dir: Path) -> None:
        self._argv = [sys.executable, "-c", SERVER]
        self._argv += [msgspec.json.encode(settings).decode(), str(run_dir)]
        self.kills = 0
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._argv)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.kills += 1

    def kill_and_restart(self) -> None:
        self.kill()
        self.start()


class Learner:
    """Steps leases in order, reads every row, publishes each time and saves every other time."""

    def __init__(self, peer: BufferPeer, versions: list[int], server: Server) -> None:
        self._peer = peer
        self._versions = versions
        self._server = server
        self.trained: list[str] = []

    async def run(self, kill_at: tuple[int, ...]) -> None:
        await self._peer.deliver(Published(VersionRow(1, None, 0), 0))
        number = 1
        while (header := await self._lease(number)) is not None:
            for group in header.groups:
                await self._check(group)
                self.trained.append(group.task)
            await self._peer.deliver(Stepped(number, False, 0.0, 0.0, 0.1, {"loss": 1.0}))
            if number in kill_at:
                self._server.kill_and_restart()
            self._versions.append(number + 1)
            await self._peer.deliver(Published(VersionRow(number + 1, number, number), number))
            if number % 2 == 0 or header.last:
                await self._peer.deliver(Retire(number))
            number += 1
        await self._peer.flush(30)

    async def _lease(self, number: int) -> LeaseHeader | None:
        await self._peer.send(LeaseRequest(number))
        while True:
            message, _ = await self._peer.receive()
            match message:
                case Welcome():
                    await self._peer.send(LeaseRequest(number))
                case Lease(header) if header.number == number:
                    return header
                case NoMoreLeases():
                    return None

    async def _check(self, group: GroupRows) -> None:
        refs = [row.payload for row in group.trajectories]
        fetch = Fetch(group.mint, refs, ["versions", "tokens"])
        await self._peer.send(fetch)
        while True:
            message, columns = await self._peer.receive()
            if isinstance(message, Welcome):
                await self._peer.send(fetch)
            if isinstance(message, Rows) and message.request == group.mint:
                break
        assert message.missing == []
        for position, row in enumerate(group.trajectories):
            tokens = np.frombuffer(columns[2 * position + 1], COLUMNS["tokens"])
            assert len(tokens) == row.meta.num_tokens
            assert tokens[:2].tolist() == [group.mint, row.episode.index]
        assert group.rewards == [float(id.index) for id in group.episodes]


async def play_a_run(
    settings: BufferSettings, run_dir: Path, kill_at: tuple[int, ...]
) -> tuple[Learner, Server, list[Event]]:
    server = Server(settings, run_dir)
    versions, events = [1], list[Event]()
    address = settings.address
    try:
        async with (
            BufferPeer(address, role="learner", name="learner") as learning,
            BufferPeer(address, role="driver", name="driver") as driving,
            BufferPeer(address, role="worker", name="w0") as first,
            BufferPeer(address, role="worker", name="w1") as second,
        ):
            learner = Learner(learning, versions, server)
            with anyio.fail_after(90):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(feed, driving, events)
                    for seed, peer in enumerate((first, second)):
                        tasks.start_soon(Worker(peer, versions, seed).run)
                    await learner.run(kill_at)
                    tasks.cancel_scope.cancel()
    finally:
        server.kill()
    return learner, server, events


async def test_a_run_over_real_sockets_trains_every_group_once(
    settings: BufferSettings, tmp_path: Path
) -> None:
    learner, _, events = await play_a_run(settings, tmp_path, kill_at=())
    assert Counter(learner.trained) == {f"t{i}": 1 for i in range(NUM_TASKS)}
    report = audit(tmp_path)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: NUM_TASKS}
    leases = [event.data["number"] for event in events if event.kind == "lease"]
    assert leases == list(range(1, NUM_TASKS // settings.rollout_batch_size + 1))
    assert len(list((tmp_path / "payload").glob("*.seg"))) <= 1


async def test_a_buffer_that_is_killed_and_restarted_loses_nothing_and_doubles_nothing(
    settings: BufferSettings, tmp_path: Path
) -> None:
    learner, server, _ = await play_a_run(settings, tmp_path, kill_at=(2, 5, 6))
    assert server.kills == 4
    assert Counter(learner.trained) == {f"t{i}": 1 for i in range(NUM_TASKS)}
    report = audit(tmp_path)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: NUM_TASKS}
