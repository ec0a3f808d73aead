"""How soon the learner knows that a rollout batch is stored, across processes, on an idle machine.

    worker --Finished--> buffer: fsync, commit --ScoreGroup--> worker --GroupScore--> buffer: commit
        --Lease--> learner

Buffer, worker with driver, and learner are three processes with the production sockets between
them. A batch is one episode, so every report makes a lease, and each is reported after a pause:
whoever is woken has slept. What is measured is the wake-up: from the return of the commit that
holds the lease, in the buffer, until `receive` returns in the learner's main thread. `stored` is
the whole way: from the commit of the trajectory itself, through the judge and the second commit.
All clocks are the host's monotonic one.

`vs_bare_hops` is the median over that of a byte that wakes as many threads in the same run, through
bare sockets and with the same pauses (`benchmarks.hops`): what the buffer adds to its kernel.

`idle_cpu` is the processor time of the buffer while its peers have nothing to say but heartbeats.
"""

import argparse
import tempfile
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

import anyio
import msgspec
import psutil

from agentrl.buffer import server
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import EpisodeRow, LeaseRow
from agentrl.buffer.rows import Row as LedgerRow
from agentrl.buffer.settings import BufferSettings
from agentrl.types import Outcome, VersionRow
from agentrl.wire.blocking import BlockingPeer
from agentrl.wire.messages import Assign, Capacity, Lease, LeaseRequest, PushDone, ScoreGroup
from agentrl.wire.peer import BufferPeer
from benchmarks import Row, positive, report
from benchmarks.hops import hops_ms
from benchmarks.stand import (
    after,
    child,
    feed,
    finished,
    made,
    quantile,
    running_buffer,
    score,
    serve,
    settings_of,
)

NUM_TOKENS = 2048
#: Seconds between what the worker is given and its report.
PAUSE_S = 0.02
#: Leases that only warm up, seconds without any, and those that a lease may take.
WARMUP, IDLE_S, LIMIT_S = 20, 10.0, 60.0


class Commits(msgspec.Struct, frozen=True):
    """When the buffer had committed: each trajectory and each lease, in order."""

    stored: list[float]
    leased: list[float]


class TimedLedger(Ledger):
    """The ledger, and the moments at which its commits returned."""

    moments = Commits([], [])

    def commit(self, rows: Iterable[LedgerRow]) -> None:
        written = list(rows)
        super().commit(written)
        now = time.monotonic()
        for row in written:
            if isinstance(row, LeaseRow) and not row.stepped_by:
                self.moments.leased.append(now)
            elif isinstance(row, EpisodeRow) and row.outcome is Outcome.DONE:
                self.moments.stored.append(now)


def serve_timed(
    connection: Connection, settings: BufferSettings, run_dir: str, keys: str | None
) -> None:
    """Main of the buffer process; in the end it tells its commits."""
    with patch.object(server, "Ledger", TimedLedger):
        serve(connection, settings, run_dir, keys)
    connection.send_bytes(msgspec.json.encode(TimedLedger.moments))


def learn(connection: Connection, address: str, num: int) -> None:
    """Main of the learner process: takes `num` leases, and tells when each was there."""
    noticed = []
    with BlockingPeer(address, role="learner", name="learner-0") as peer:
        peer.deliver(PushDone(VersionRow(1, None, 0), 0))
        for number in range(1, num + 1):
            peer.send(LeaseRequest(number))
            while not isinstance(peer.receive(LIMIT_S)[0], Lease):
                pass
            noticed.append(time.monotonic())
            for word in after(number):
                peer.deliver(word)
        connection.send_bytes(msgspec.json.encode(noticed))
        peer.send(LeaseRequest(num + 1))  # it waits while the buffer is idle
        connection.recv_bytes()


async def play(peer: BufferPeer, num: int) -> None:
    """A worker that reports `num` episodes, each some time after it was given."""
    meta, columns = made(NUM_TOKENS)
    judged: set[str] = set()
    await peer.send(Capacity(1))
    while len(judged) < num:
        message, _ = await peer.receive()
        match message:
            case Assign(episodes):
                await anyio.sleep(PAUSE_S)
                for episode in episodes:
                    await peer.deliver(finished(episode.id, meta), columns)
            case ScoreGroup():
                await peer.deliver(score(message))
                judged.add(message.group)
            case _:
                pass


class Seen(msgspec.Struct, frozen=True):
    """`noticed`: when the learner had each lease; `idle_cpu`: share of one core that the buffer
    takes while nothing happens."""

    noticed: list[float]
    idle_cpu: float


async def lead(address: str, learner: Connection, buffer: psutil.Process, num: int) -> Seen:
    """Driver and worker, until the learner has its leases and for some idle time after."""
    async with (
        BufferPeer(address, role="driver", name="driver") as driver,
        BufferPeer(address, role="worker", name="worker-0") as worker,
        anyio.create_task_group() as others,
    ):
        others.start_soon(feed, driver)
        with anyio.fail_after(LIMIT_S + num):
            await play(worker, num)
            await worker.flush(LIMIT_S)
        noticed = await anyio.to_thread.run_sync(learner.recv_bytes)
        before, began = buffer.cpu_times(), time.monotonic()
        await anyio.sleep(IDLE_S)
        after_it, seconds = buffer.cpu_times(), time.monotonic() - began
        others.cancel_scope.cancel()
    used = after_it.user + after_it.system - before.user - before.system
    return Seen(msgspec.json.decode(noticed, type=list[float]), used / seconds)


def measure(num: int) -> tuple[Commits, Seen]:
    """`num` wake-ups after the warm-up, with what came before them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = settings_of(
            f"ipc://{folder}/b.sock", n_samples_per_prompt=1, rollout_batch_size=1
        )
        with running_buffer(settings, folder, main=serve_timed) as (process, told, address):
            with child(learn, address, WARMUP + num) as (_, learner):
                buffer = psutil.Process(process.pid)
                seen = anyio.run(lead, address, learner, buffer, WARMUP + num)
            process.terminate()
            return msgspec.json.decode(told.recv_bytes(), type=Commits), seen


def rows_of(commits: Commits, seen: Seen, bare: Sequence[float]) -> list[Row]:
    """`bare`: milliseconds of bare wake-ups."""
    woken = latencies_ms(commits.leased, seen.noticed)
    stored = latencies_ms(commits.stored, seen.noticed)
    ratio = quantile(woken, 0.5) / quantile(bare, 0.5)
    return [
        Row("p50_ms", round(quantile(woken, 0.5), 3), "ms", "< 1"),
        Row("p99_ms", round(quantile(woken, 0.99), 3), "ms", "< 5"),
        Row("bare_hops_p50_ms", round(quantile(bare, 0.5), 3), "ms"),
        Row("vs_bare_hops", round(ratio, 2), "x", "<= 6"),
        Row("idle_cpu", round(seen.idle_cpu, 4), "share", "< 0.02"),
        Row("stored_p50_ms", round(quantile(stored, 0.5), 3), "ms"),
        Row("stored_p99_ms", round(quantile(stored, 0.99), 3), "ms"),
    ]


def latencies_ms(began: Sequence[float], noticed: Sequence[float]) -> list[float]:
    """Milliseconds of each wake-up after the warm-up, the i-th from `began[i]` to `noticed[i]`.

    Raises ValueError unless each beginning has its end: what was measured is something else then.
    """
    if len(began) != len(noticed):
        raise ValueError(f"{len(began)} commits and {len(noticed)} leases do not belong together")
    pairs = zip(began[WARMUP:], noticed[WARMUP:], strict=True)
    return [1000 * (end - begin) for begin, end in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=positive, default=1000, help="wake-ups that are measured")
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as folder:
        bare = hops_ms(WARMUP + count, PAUSE_S, Path(folder))[WARMUP:]
    report("wakeup", rows_of(*measure(count), bare))


if __name__ == "__main__":
    main()
