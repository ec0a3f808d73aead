"""The buffer's shell: single conversations with a real buffer in this process."""

import math
import sqlite3
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
import pytest

from agentrl.buffer import BufferSettings, audit, run_buffer
from agentrl.errors import FencedError, StoreError
from agentrl.types import (
    EpisodeId,
    EpisodeReport,
    Fate,
    Outcome,
    SamplingParams,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.wire.frames import PROTOCOL_VERSION, decode, encode
from agentrl.wire.messages import (
    Assign,
    Capacity,
    Envelope,
    Evaluate,
    Event,
    Fetch,
    Finished,
    GroupScore,
    Hello,
    Lease,
    LeaseRequest,
    PushDone,
    Refused,
    Rows,
    ScoreGroup,
)
from agentrl.wire.peer import BufferPeer
from agentrl.wire.transport import DealerSocket
from tests.integration.buffer_peers import Worker, columns_of, feed, small_run

pytestmark = pytest.mark.anyio

M = TypeVar("M")


@pytest.fixture
def settings(tmp_path: Path) -> BufferSettings:
    return small_run(tmp_path)


@asynccontextmanager
async def serving(settings: BufferSettings, run_dir: Path) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda **kw: run_buffer(settings, run_dir, **kw))
        yield
        tasks.cancel_scope.cancel()


async def listen(peer: BufferPeer) -> None:
    while True:
        await peer.receive()


async def receive_one(peer: BufferPeer, kind: type[M]) -> M:
    with anyio.fail_after(300):
        while True:
            message, _ = await peer.receive()
            if isinstance(message, kind):
                return message


async def test_bytes_that_are_no_message_do_not_stop_the_buffer(
    settings: BufferSettings, tmp_path: Path
) -> None:
    async with serving(settings, tmp_path):
        async with DealerSocket(settings.address, identity=b"stranger") as socket:
            for frames in ([b"junk"], [b"aRLw", b"", b""], [b"\x00" * 40, b"x"]):
                await socket.send(list(frames))
        async with BufferPeer(settings.address, role="worker", name="w0") as peer:
            assert peer.welcome.epoch == 1
    kept = sorted((tmp_path / "quarantine").glob("*.bin"))
    assert [file.read_bytes() for file in kept] == [b"junk", b"aRLw", b"\x00" * 40 + b"x"]


@pytest.mark.parametrize("damage", ["cut", "row"])
async def test_a_damaged_ledger_ends_the_buffer_as_bad_data(
    settings: BufferSettings, tmp_path: Path, damage: str
) -> None:
    """Which is nothing that a restart could mend."""
    async with (
        serving(settings, tmp_path),
        BufferPeer(settings.address, role="worker", name="w0"),
    ):
        pass
    path = tmp_path / "ledger.db"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:20_000])
    else:
        db = sqlite3.connect(path)
        db.execute("UPDATE peers SET epoch = 7")
        db.commit()
        db.close()
    with pytest.raises(StoreError, match=r"damaged|no readable ledger") as error:
        await run_buffer(settings, tmp_path)
    assert error.value.exit_code == 65


async def test_a_replaced_process_is_told_to_exit(settings: BufferSettings, tmp_path: Path) -> None:
    async with (
        serving(settings, tmp_path),
        BufferPeer(settings.address, role="worker", name="w0") as old,
        BufferPeer(settings.address, role="worker", name="w0") as new,
    ):
        assert new.welcome.epoch == 2
        with anyio.fail_after(300), pytest.raises(FencedError, match="replaced"):
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
            await learner.deliver(PushDone(VersionRow(1, None, 0), 0))
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
            with anyio.fail_after(300):
                while not isinstance(message, Refused):
                    message, _ = await worker.receive()
            assert "5 tokens are sampled, the report says 4" in message.reason
            await worker.flush(60)
            tasks.cancel_scope.cancel()


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
        await learner.deliver(PushDone(VersionRow(1, None, 0), 0))
        await learner.flush(60)
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
        order = await receive_one(worker, ScoreGroup)
        await worker.deliver(GroupScore(order.group, rewards=wrong))
        assert "cannot read it" in (await receive_one(worker, Refused)).reason
        await worker.flush(60)
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
        with anyio.fail_after(300):
            await socket.send([bytes(other), *rest])
            envelope, _ = decode(await socket.recv())
    assert isinstance(envelope.body, Refused)
    assert envelope.body.fatal
    assert f"protocol version {PROTOCOL_VERSION + 1}" in envelope.body.reason


async def test_a_forged_number_costs_its_episode_and_nobody_elses(
    settings: BufferSettings, tmp_path: Path
) -> None:
    """Reports, verdicts and scores of 1e308 and of not-a-number, in training and evaluation."""
    settings = msgspec.structs.replace(settings, rollout_batch_size=1, n_samples_per_prompt=1)
    events: list[Event] = []
    async with serving(settings, tmp_path):
        address = settings.address
        async with (
            BufferPeer(address, role="learner", name="learner") as learner,
            BufferPeer(address, role="driver", name="driver") as driver,
            BufferPeer(address, role="worker", name="w0") as worker,
            anyio.create_task_group() as tasks,
        ):
            await learner.deliver(PushDone(VersionRow(1, None, 0), 0))
            for name in ("huge", "unclear"):
                tasks_of_set = [Task(f"{name}{i}", {}) for i in range(2)]
                await driver.deliver(Evaluate(name, name, tasks_of_set, 1, SamplingParams()))
            tasks.start_soon(feed, driver, events)
            tasks.start_soon(forge, worker, [1e308, math.nan])
            await learner.send(LeaseRequest(1))
            lease = await receive_one(learner, Lease)
            assert lease.header.groups[0].rewards == [1.0]
            with anyio.fail_after(300):
                while sum(e.kind == "evaluation" for e in events) < 2:  # noqa: ASYNC110 - `feed` hears
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert [e.data["failed"] for e in events if e.kind == "evaluation"] == [2, 2]
    report = audit(tmp_path)
    assert report.problems == ()
    assert (report.fates[Fate.POISON], report.fates[Fate.ENV_ERROR]) == (2, 2)
    async with serving(settings, tmp_path):  # a restart can read every row
        pass


async def forge(worker: BufferPeer, numbers: list[float]) -> None:
    """Report `numbers` as rewards, then judge by them, then work soundly; score by them always."""
    rewards, verdicts = deque(numbers), deque(numbers)
    await worker.send(Capacity(4))
    while True:
        message, _ = await worker.receive()
        match message:
            case Assign():
                for each in message.episodes:
                    is_scored = each.evaluation is not None
                    reward = numbers[each.evaluation == "huge"] if is_scored else 1.0
                    if not is_scored and rewards:
                        reward = rewards.popleft()
                    meta = TrajectoryMeta(3, 3, 1, 1.0, [(1, 3)])
                    done, end = Outcome.DONE, StopReason.TERMINATED
                    report = EpisodeReport(each.id, done, end, [meta], reward)
                    group = "1" if is_scored else each.id.group
                    columns = columns_of(EpisodeId(group, each.id.index), 3, 1)
                    await worker.deliver(Finished(report), columns)
            case ScoreGroup():
                given = verdicts.popleft() if verdicts else 1.0
                await worker.deliver(GroupScore(message.group, [given]))
