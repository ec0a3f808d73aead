"""The real buffer process over ipc, with peers of this process, killed and restarted on the way."""

import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
import numpy as np
import pytest

from agentrl.buffer import BufferSettings, audit, run_buffer
from agentrl.errors import FencedError
from agentrl.types import (
    COLUMNS,
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    Fate,
    GroupRows,
    LeaseHeader,
    Outcome,
    SpanKind,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.wire.frames import PROTOCOL_VERSION, decode, encode
from agentrl.wire.messages import (
    Assign,
    Cancel,
    Capacity,
    Envelope,
    Event,
    Fetch,
    Finished,
    Hello,
    Judge,
    Lease,
    LeaseRequest,
    NoMoreLeases,
    Published,
    Refused,
    Retire,
    Rows,
    Stepped,
    TaskCredit,
    Tasks,
    Verdict,
    Welcome,
)
from agentrl.wire.peer import BufferPeer
from agentrl.wire.transport import DealerSocket

pytestmark = pytest.mark.anyio

NUM_TASKS = 40
M = TypeVar("M")
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
    return BufferSettings(
        address=f"ipc://{tmp_path}/b.sock",
        rollout_batch_size=4,
        n_samples_per_prompt=3,
        async_buffer_size=2,
        max_staleness=2,
        heartbeat_s=0.2,
        liveness_s=20.0,
        segment_bytes=2000,
        keep_trajectories=0,
    )


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


def columns_of(id: EpisodeId, size: int, version: int) -> list[np.ndarray[Any, Any]]:
    """Columns that tell whose they are: the tokens hold the group and the index."""
    values = {
        "tokens": np.array([int(id.group), id.index, *range(size - 2)]),
        "kinds": np.full(size, SpanKind.SAMPLED),
        "logprobs": np.full(size, -1.0),
        "versions": np.full(size, version),
        "turns": np.zeros(size),
    }
    return [values[name].astype(dtype) for name, dtype in COLUMNS.items()]


class Worker:
    """Answers every episode after a moment, with one trajectory."""

    def __init__(self, peer: BufferPeer, versions: list[int], seed: int) -> None:
        self._peer = peer
        self._versions = versions
        self._random = random.Random(seed)
        self.playing: set[EpisodeId] = set()

    async def run(self) -> None:
        await self._peer.send(Capacity(16))
        async with anyio.create_task_group() as episodes:
            while True:
                message, _ = await self._peer.receive()
                match message:
                    case Welcome():
                        await self._peer.send(Capacity(16))
                    case Assign():
                        for episode in message.episodes:
                            self.playing.add(episode.id)
                            episodes.start_soon(self._play, episode)
                    case Cancel():
                        self.playing -= set(message.episodes)
                    case Judge():
                        rewards = [summary.reward for summary in message.episodes]
                        await self._peer.deliver(Verdict(message.group, rewards))

    async def _play(self, episode: EpisodeAssignment) -> None:
        await anyio.sleep(self._random.random() * 0.05)
        if episode.id not in self.playing:
            return
        id, version = episode.id, self._versions[-1]
        size = self._random.randint(2, 30)
        if self._random.random() < 0.05 and id.attempt == 0:
            report = EpisodeReport(id, Outcome.ENGINE_ERROR, StopReason.ERROR, [], error="chance")
            await self._peer.deliver(Finished(report))
        else:
            meta = TrajectoryMeta(size, size, 1, 0.0, [(version, size)])
            done = EpisodeReport(id, Outcome.DONE, StopReason.TERMINATED, [meta], float(id.index))
            await self._peer.deliver(Finished(done), columns_of(id, size, version))
        self.playing.discard(id)


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


async def feed(peer: BufferPeer, events: list[Event]) -> None:
    """A driver with a finite source."""
    while True:
        message, _ = await peer.receive()
        if isinstance(message, Event):
            events.append(message)
        if isinstance(message, TaskCredit):
            end = min(NUM_TASKS, message.cursor + message.num_tasks)
            tasks = [Task(f"t{position}", {}) for position in range(message.cursor, end)]
            await peer.deliver(Tasks(tasks, end, exhausted=end == NUM_TASKS))


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


# ---- single conversations with a server in this process ------------------------------------------


@asynccontextmanager
async def serving(settings: BufferSettings, run_dir: Path) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda **kw: run_buffer(settings, run_dir, **kw))
        yield
        tasks.cancel_scope.cancel()


async def test_bytes_that_are_no_message_do_not_stop_the_buffer(
    settings: BufferSettings, tmp_path: Path
) -> None:
    async with serving(settings, tmp_path):
        async with DealerSocket(settings.address, identity=b"stranger") as socket:
            for frames in ([b"junk"], [b"aRLw", b"", b""], [b"\x00" * 40, b"x"]):
                await socket.send(list(frames))
        async with BufferPeer(settings.address, role="worker", name="w0") as peer:
            assert peer.welcome.epoch == 1


async def listen(peer: BufferPeer) -> None:
    while True:
        await peer.receive()


async def test_a_replaced_process_is_told_to_exit(settings: BufferSettings, tmp_path: Path) -> None:
    async with (
        serving(settings, tmp_path),
        BufferPeer(settings.address, role="worker", name="w0") as old,
        BufferPeer(settings.address, role="worker", name="w0") as new,
    ):
        assert new.welcome.epoch == 2
        with anyio.fail_after(10), pytest.raises(FencedError, match="replaced"):
            await listen(old)


async def test_a_damaged_payload_is_reported_missing_and_the_others_are_served(
    settings: BufferSettings, tmp_path: Path
) -> None:
    settings = msgspec.structs.replace(settings, rollout_batch_size=1, n_samples_per_prompt=2)
    async with serving(settings, tmp_path):
        address = settings.address
        async with (
            BufferPeer(address, role="learner", name="learner") as learner,
            BufferPeer(address, role="driver", name="driver") as driver,
            BufferPeer(address, role="worker", name="w0") as worker,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(feed, driver, [])
            tasks.start_soon(Worker(worker, [1], 3).run)
            await learner.deliver(Published(VersionRow(1, None, 0), 0))
            await learner.send(LeaseRequest(1))
            message, _ = await learner.receive()
            assert isinstance(message, Lease)
            first, second = (row.payload for row in message.header.groups[0].trajectories)
            path = tmp_path / "payload" / f"{first.segment:08d}.seg"
            data = bytearray(path.read_bytes())
            data[first.offset] ^= 255
            path.write_bytes(data)
            await learner.send(Fetch(9, [first, second]))
            rows, columns = await learner.receive()
            assert rows == Rows(9, [0])
            assert [len(column) > 0 for column in columns] == [False] * 5 + [True] * 5
            tasks.cancel_scope.cancel()


async def test_a_report_with_false_columns_is_refused_over_the_wire(
    settings: BufferSettings, tmp_path: Path
) -> None:
    settings = msgspec.structs.replace(settings, n_samples_per_prompt=1)
    async with serving(settings, tmp_path):
        address = settings.address
        async with (
            BufferPeer(address, role="driver", name="driver") as driver,
            BufferPeer(address, role="worker", name="w0") as worker,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(feed, driver, [])
            await worker.send(Capacity(1))
            message, _ = await worker.receive()
            assert isinstance(message, Assign)
            id = message.episodes[0].id
            meta = TrajectoryMeta(5, 4, 1, 0.0, [(1, 4)])
            report = EpisodeReport(id, Outcome.DONE, StopReason.TERMINATED, [meta])
            await worker.deliver(Finished(report), columns_of(id, 5, 1))
            with anyio.fail_after(10):
                while not isinstance(message, Refused):
                    message, _ = await worker.receive()
            assert "5 tokens are sampled, the report says 4" in message.reason
            await worker.flush(10)
            tasks.cancel_scope.cancel()


async def receive_one(peer: BufferPeer, kind: type[M]) -> M:
    with anyio.fail_after(10):
        while True:
            message, _ = await peer.receive()
            if isinstance(message, kind):
                return message


async def test_messages_that_cannot_be_read_are_refused_once_and_their_groups_end(
    settings: BufferSettings, tmp_path: Path
) -> None:
    settings = msgspec.structs.replace(settings, n_samples_per_prompt=1)
    address = settings.address
    async with (
        serving(settings, tmp_path),
        BufferPeer(address, role="learner", name="learner") as learner,
        BufferPeer(address, role="driver", name="driver") as driver,
        BufferPeer(address, role="worker", name="w0") as worker,
        anyio.create_task_group() as tasks,
    ):
        await learner.deliver(Published(VersionRow(1, None, 0), 0))
        await learner.flush(10)
        await worker.send(Capacity(2))
        tasks.start_soon(feed, driver, [])
        first, second = [e.id for e in (await receive_one(worker, Assign)).episodes]
        wrong: Any = "a number"
        report = EpisodeReport(first, Outcome.DONE, StopReason.TERMINATED, [], reward=wrong)
        await worker.deliver(Finished(report))
        assert "cannot read it" in (await receive_one(worker, Refused)).reason
        meta = TrajectoryMeta(5, 5, 1, 0.0, [(1, 5)])
        report = EpisodeReport(second, Outcome.DONE, StopReason.TERMINATED, [meta])
        await worker.deliver(Finished(report), columns_of(second, 5, 1))
        order = await receive_one(worker, Judge)
        await worker.deliver(Verdict(order.group, rewards=wrong))
        assert "cannot read it" in (await receive_one(worker, Refused)).reason
        await worker.flush(10)
        tasks.cancel_scope.cancel()
    assert audit(tmp_path).fates == {Fate.POISON: 1, Fate.ENV_ERROR: 1}


async def test_a_peer_of_another_protocol_version_is_told_to_exit_at_once(
    settings: BufferSettings, tmp_path: Path
) -> None:
    prelude, *rest = encode(Envelope(0, 0, Hello("worker", "w0", "1")))
    other = bytearray(prelude)
    other[4:6] = (PROTOCOL_VERSION + 1).to_bytes(2, "little")
    async with (
        serving(settings, tmp_path),
        DealerSocket(settings.address, identity=b"w0") as socket,
    ):
        with anyio.fail_after(10):
            await socket.send([bytes(other), *rest])
            envelope, _ = decode(await socket.recv())
    assert isinstance(envelope.body, Refused)
    assert envelope.body.fatal
    assert f"protocol version {PROTOCOL_VERSION + 1}" in envelope.body.reason
