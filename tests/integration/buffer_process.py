"""The real buffer as a process, and a run that four peers play with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import msgspec
import numpy as np

from agentrl.buffer import BufferSettings
from agentrl.columns import COLUMNS
from agentrl.types import GroupRows, LeaseHeader, VersionRow
from agentrl.wire.messages import (
    Event,
    Fetch,
    Lease,
    LeaseRequest,
    NoMoreLeases,
    PushDone,
    Retire,
    Rows,
    Stepped,
    Welcome,
)
from agentrl.wire.peer import BufferPeer
from tests.integration.buffer_peers import Worker, feed

_SERVER = """
import sys
from pathlib import Path
import anyio, msgspec
from agentrl.buffer import BufferSettings, run_buffer
from agentrl.cluster.signals import until_sigterm
settings = msgspec.json.decode(sys.argv[1], type=BufferSettings)
anyio.run(until_sigterm, lambda: run_buffer(settings, Path(sys.argv[2])))
"""


class Server:
    """The buffer as a child process. `env`: more of its environment; `end`: the signal that ends
    it."""

    def __init__(
        self,
        settings: BufferSettings,
        run_dir: Path,
        *,
        env: Mapping[str, str] | None = None,
        end: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.address = settings.address
        self._argv = [sys.executable, "-c", _SERVER]
        self._argv += [msgspec.json.encode(settings).decode(), str(run_dir)]
        self._env = os.environ | (env or {})
        self._signal = end
        self.num_ends = 0
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._argv, env=self._env)

    def end(self) -> None:
        self._process.send_signal(self._signal)
        self._process.wait(timeout=500)
        self.num_ends += 1

    def end_and_restart(self) -> None:
        self.end()
        self.start()


class Learner:
    """Steps leases in order, reads every row, publishes each time and saves every other time."""

    def __init__(self, peer: BufferPeer, versions: list[int], server: Server) -> None:
        self._peer = peer
        self._versions = versions
        self._server = server
        self.trained: list[str] = []

    async def run(self, end_at: tuple[int, ...]) -> None:
        await self._peer.deliver(PushDone(VersionRow(1, None, 0), 0))
        number = 1
        while (header := await self._lease(number)) is not None:
            for group in header.groups:
                await self._check(group)
                self.trained.append(group.task)
            await self._peer.deliver(Stepped(number, False, 0.0, 0.0, 0.1, {"loss": 1.0}))
            if number in end_at:
                self._server.end_and_restart()
            self._versions.append(number + 1)
            await self._peer.deliver(PushDone(VersionRow(number + 1, number, number), number))
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
            tokens = np.frombuffer(columns[2 * position + 1], COLUMNS["tokens"].dtype)
            assert len(tokens) == row.meta.num_tokens
            assert tokens[:2].tolist() == [group.mint, row.episode.index]
        assert group.rewards == [float(id.index) for id in group.episodes]


async def play_a_run(
    server: Server, *, end_at: tuple[int, ...] = (), within_s: float = 90.0
) -> tuple[Learner, list[Event]]:
    """Play until no lease is left; the buffer is ended for good, and before that after each of
    these iterations."""
    versions, events = [1], list[Event]()
    address = server.address
    try:
        async with (
            BufferPeer(address, role="learner", name="learner") as learning,
            BufferPeer(address, role="driver", name="driver") as driving,
            BufferPeer(address, role="worker", name="w0") as first,
            BufferPeer(address, role="worker", name="w1") as second,
        ):
            learner = Learner(learning, versions, server)
            with anyio.fail_after(within_s):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(feed, driving, events)
                    for seed, peer in enumerate((first, second)):
                        tasks.start_soon(Worker(peer, versions, seed).run)
                    await learner.run(end_at)
                    tasks.cancel_scope.cancel()
    finally:
        server.end()
    return learner, events
