"""How many finished trajectories the buffer takes in, bare pyzmq and a Ray queue beside it.

A worker process reports episodes as fast as the buffer assigns them, `WINDOW` at once, over real
sockets to a production buffer; a learner leases and retires them, so the ledger stays as long as in
a run. Twice:

    memory    32k tokens, `ipc://`, run directory in shared memory, where fsync costs nothing;
              against bare pyzmq (DEALER to ROUTER) and the queue actor of Ray, same trajectories;
              `checked_vs_bare` is what the same transport reaches that also checks and writes
    durable   8k tokens, `tcp://` with CURVE, run directory on disk: what is acknowledged is fsynced

An acknowledgement counts from `deliver` in the worker until its Ack is there.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec

from agentrl.wire.keys import CurveKeys, make_keys
from agentrl.wire.messages import Ack, Assign, Capacity, Message, ScoreGroup, Welcome
from agentrl.wire.peer import BufferPeer
from benchmarks import Row, positive, report
from benchmarks.rivals import WINDOW, checked_rate, pyzmq_rate, rate_of, ray_queue_rate
from benchmarks.stand import (
    Made,
    feed,
    finished,
    lease_loop,
    made,
    quantile,
    running_buffer,
    score,
    settings_of,
)

SHARED_MEMORY = Path("/dev/shm")
LONG, SHORT = 32 * 1024, 8 * 1024
#: Episodes that the worker of the durable run holds at once.
DURABLE_WINDOW = 8
#: The queue of Ray keeps what it is given, in shared memory.
RAY_MOST = 1000
SIZES = {"n_samples_per_prompt": 8, "rollout_batch_size": 16}
#: Seconds that the last acknowledgements may take.
FLUSH_S = 30.0


class Flow(msgspec.Struct, frozen=True):
    """Trajectories of one run, in order of their acknowledgement: when, and how long it took."""

    acked: list[float]
    latency: list[float]

    @property
    def per_s(self) -> float:
        return rate_of(self.acked)


class AckedPeer(BufferPeer):
    """Notes when each message of its outbox was acknowledged."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.acked: dict[int, float] = {}

    async def _take(self, message: Message, columns: list[memoryview]) -> None:
        if isinstance(message, Ack):
            self.acked |= dict.fromkeys(message.seqs, time.monotonic())
        await super()._take(message, columns)


async def report_all(peer: AckedPeer, trajectory: Made, window: int, num: int) -> Flow:
    """A worker that has played whatever it is given in no time, until `num` are acknowledged."""
    meta, columns = trajectory
    reported: dict[int, float] = {}
    await peer.send(Capacity(window))
    while len(reported) < num:
        message, _ = await peer.receive()
        match message:
            case Assign(episodes):
                for episode in episodes:
                    moment = time.monotonic()
                    reported[await peer.deliver(finished(episode.id, meta), columns)] = moment
            case ScoreGroup():
                await peer.deliver(score(message))
            case Welcome():
                raise RuntimeError("the worker lost its buffer: what was measured is no flow")
    await peer.flush(FLUSH_S)
    pairs = sorted((peer.acked[seq], seq) for seq in reported)
    return Flow([at for at, _ in pairs], [at - reported[seq] for at, seq in pairs])


async def flow(
    address: str, keys: CurveKeys | None, trajectory: Made, window: int, num: int
) -> Flow:
    """Worker, driver and learner, until the worker has its acknowledgements."""
    async with (
        BufferPeer(address, role="driver", name="driver", keys=keys) as driver,
        BufferPeer(address, role="learner", name="learner-0", keys=keys) as learner,
        AckedPeer(address, role="worker", name="worker-0", keys=keys) as worker,
        anyio.create_task_group() as others,
    ):
        others.start_soon(feed, driver)
        others.start_soon(lease_loop, learner)
        found = await report_all(worker, trajectory, window, num)
        others.cancel_scope.cancel()
    return found


def in_memory(trajectory: Made, num: int) -> Flow:
    """Without durability and CURVE."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as name:
        folder = Path(name)
        settings = settings_of(f"ipc://{folder}/b.sock", **SIZES)
        with running_buffer(settings, folder) as (_, _, address):
            return anyio.run(flow, address, None, trajectory, WINDOW, num)


def durable(trajectory: Made, num: int) -> Flow:
    """With both."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys = make_keys(folder / "keys")
        settings = settings_of("tcp://127.0.0.1:*", **SIZES)
        with running_buffer(settings, folder, folder / "keys") as (_, _, address):
            return anyio.run(flow, address, keys, trajectory, DURABLE_WINDOW, num)


class Measured(msgspec.Struct, frozen=True):
    """What the rounds found; each measured all five, one after the other."""

    memory: list[Flow]
    bare_per_s: list[float]
    checked_per_s: list[float]
    ray_per_s: list[float]
    durable: list[Flow]


def measure(rounds: int, num: int) -> Measured:
    long, short = made(LONG), made(SHORT)
    found = Measured([], [], [], [], [])
    for number in range(1, rounds + 1):
        with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
            found.bare_per_s.append(pyzmq_rate(long, num, Path(folder)))
            found.checked_per_s.append(checked_rate(long, num, Path(folder)))
        found.memory.append(in_memory(long, num))
        found.ray_per_s.append(ray_queue_rate(long, min(num, RAY_MOST)))
        found.durable.append(durable(short, num))
        ours = f"memory {found.memory[-1].per_s:.0f}, durable {found.durable[-1].per_s:.0f}"
        print(f"round {number} of {rounds}: {ours} trajectories a second", flush=True)
    return found


def rows_of(found: Measured) -> list[Row]:
    memory = [flow.per_s for flow in found.memory]
    late = [1000 * seconds for flow in found.durable for seconds in flow.latency]
    durable_per_s = statistics.median(flow.per_s for flow in found.durable)
    unit = "trajectories/s"
    return [
        Row("vs_bare_pyzmq", round(ratio(memory, found.bare_per_s), 3), "x", ">= 0.6"),
        Row("checked_vs_bare", round(ratio(found.checked_per_s, found.bare_per_s), 3), "x"),
        Row("vs_checked", round(ratio(memory, found.checked_per_s), 3), "x"),
        Row("vs_ray_queue", round(ratio(memory, found.ray_per_s), 2), "x", ">= 5"),
        Row("durable_per_s", round(durable_per_s, 1), unit, ">= 300"),
        Row("durable_ack_p99_ms", round(quantile(late, 0.99), 2), "ms", "<= 60"),
        Row("durable_ack_p50_ms", round(quantile(late, 0.5), 2), "ms"),
        Row("memory_per_s", round(statistics.median(memory), 1), unit),
        Row("bare_pyzmq_per_s", round(statistics.median(found.bare_per_s), 1), unit),
        Row("ray_queue_per_s", round(statistics.median(found.ray_per_s), 1), unit),
    ]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over the rounds of how often ours is theirs."""
    return statistics.median(our / their for our, their in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=4000, help="trajectories of a measurement")
    parser.add_argument(
        "--rounds", type=positive, default=3, help="times that everything is measured"
    )
    given = parser.parse_args()
    if given.count < 100:
        parser.error(f"--count is {given.count}; a rate needs 100 at least")
    report("ingest", rows_of(measure(given.rounds, given.count)))


if __name__ == "__main__":
    main()
