"""A buffer in a process of its own and production peers around it, for benchmarks.

    driver --tasks--> buffer --episodes--> worker --trajectories--> buffer --leases--> learner

The buffer, the peers and the sockets between them are those of a run. What stands in for the rest
takes no time: the driver never runs out of tasks, the worker plays nothing and judges everything,
the learner trains nothing.
"""

import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from agentrl.buffer.server import run_buffer
from agentrl.buffer.settings import BufferSettings
from agentrl.cluster.signals import until_sigterm
from agentrl.columns import COLUMNS
from agentrl.types import (
    EpisodeId,
    EpisodeReport,
    Outcome,
    SpanKind,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.wire.keys import load_keys
from agentrl.wire.messages import (
    Finished,
    GroupScore,
    Lease,
    LeaseRequest,
    Message,
    PushDone,
    Retire,
    ScoreGroup,
    Stepped,
    TaskCredit,
    Tasks,
)
from agentrl.wire.peer import BufferPeer

__all__ = [
    "Made",
    "after",
    "child",
    "feed",
    "finished",
    "lease_loop",
    "made",
    "quantile",
    "running_buffer",
    "score",
    "settings_of",
]

#: Seconds that a child has to end after SIGTERM.
STOP_S = 20.0
#: Tokens of a turn, and of the observation before it.
SPAN = 256

Made = tuple[TrajectoryMeta, list[np.ndarray[Any, Any]]]
_Serve = Callable[[Connection, BufferSettings, str, str | None], None]


@contextmanager
def child(main: Callable[..., None], *args: object) -> Iterator[tuple[SpawnProcess, Connection]]:
    """Run `main(connection, *args)` in a new process, that process and our end of the connection;
    SIGTERM at the end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.terminate()
        process.join(STOP_S)
        if process.is_alive():
            process.kill()
            process.join()


def serve(connection: Connection, settings: BufferSettings, run_dir: str, keys: str | None) -> None:
    """Main of a buffer process; tells the address that it serves on."""
    secrets = None if keys is None else load_keys(keys)

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            address = await tasks.start(lambda task_status: run_buffer(
                settings, Path(run_dir), keys=secrets, task_status=task_status
            ))  # fmt: skip
            connection.send_bytes(address.encode())

    anyio.run(until_sigterm, work)


@contextmanager
def running_buffer(
    settings: BufferSettings, run_dir: Path, keys: Path | None = None, main: _Serve = serve
) -> Iterator[tuple[SpawnProcess, Connection, str]]:
    """A buffer process that serves: the process, our connection to its `main`, its address."""
    given = (settings, str(run_dir), None if keys is None else str(keys))
    with child(main, *given) as (process, connection):
        yield process, connection, connection.recv_bytes().decode()


def settings_of(address: str, **changes: Any) -> BufferSettings:
    """A buffer that gives no group up for its age: the worker here samples every token with
    version 1, and the learner publishes one version after the other."""
    bounds: dict[str, Any] = {"async_buffer_size": 4, "max_staleness": 10**6}
    return BufferSettings(address=address, keep_trajectories=0, **(bounds | changes))


def made(num_tokens: int, version: int = 1) -> Made:
    """A trajectory in which observations and turns of `SPAN` tokens take turns."""
    places = np.arange(num_tokens)
    is_sampled = places // SPAN % 2 == 1
    kinds = np.where(is_sampled, SpanKind.SAMPLED, SpanKind.UNTRUSTED)
    values = {
        "tokens": np.random.default_rng(0).integers(0, 150_000, num_tokens),
        "kinds": kinds,
        "logprobs": np.where(is_sampled, -0.5, 0.0),
        "versions": np.where(is_sampled, version, -1),
        "turns": (places - SPAN) // (2 * SPAN),
    }
    num_sampled = int(is_sampled.sum())
    num_turns = int(values["turns"].max()) + 1
    meta = TrajectoryMeta(num_tokens, num_sampled, num_turns, 1.0, [(version, num_sampled)])
    return meta, [values[name].astype(c.dtype) for name, c in COLUMNS.items()]


def finished(id: EpisodeId, meta: TrajectoryMeta) -> Finished:
    """The report of an episode that left one trajectory."""
    return Finished(EpisodeReport(id, Outcome.DONE, StopReason.TERMINATED, [meta], meta.reward))


def score(order: ScoreGroup) -> GroupScore:
    """Every episode keeps its reward."""
    return GroupScore(order.group, [summary.reward for summary in order.episodes])


async def feed(peer: BufferPeer) -> None:
    """A driver whose tasks never end."""
    while True:
        message, _ = await peer.receive()
        if isinstance(message, TaskCredit):
            end = message.cursor + message.num_tasks
            tasks = [Task(str(position), {}) for position in range(message.cursor, end)]
            await peer.deliver(Tasks(tasks, end))


def after(lease: int) -> list[Message]:
    """What a learner says between lease number `lease` and its next request: it is stepped, its
    weights are published and safe."""
    row = VersionRow(lease + 1, lease, lease)
    return [Stepped(lease, False, 0.0, 0.0, 0.0), PushDone(row, lease), Retire(lease)]


async def lease_loop(peer: BufferPeer) -> None:
    """A learner that has its first version published and takes leases."""
    await peer.deliver(PushDone(VersionRow(1, None, 0), 0))
    await peer.send(LeaseRequest(1))
    while True:
        message, _ = await peer.receive()
        if isinstance(message, Lease):
            for word in after(message.header.number):
                await peer.deliver(word)
            await peer.send(LeaseRequest(message.header.number + 1))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0..1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1]
