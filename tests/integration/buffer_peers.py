"""Peers of a real buffer: a worker that plays by chance, a driver with a few tasks."""

import random
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from agentrl.buffer import BufferSettings
from agentrl.columns import COLUMNS
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    Outcome,
    SpanKind,
    StopReason,
    Task,
    TrajectoryMeta,
)
from agentrl.wire.messages import (
    Assign,
    Cancel,
    Capacity,
    Event,
    Finished,
    GroupScore,
    ScoreGroup,
    TaskCredit,
    Tasks,
    Welcome,
)
from agentrl.wire.peer import BufferPeer

NUM_TASKS = 40


def columns_of(id: EpisodeId, size: int, version: int) -> list[np.ndarray[Any, Any]]:
    """Columns that tell whose they are: the tokens hold the group and the index."""
    values = {
        "tokens": np.array([int(id.group), id.index, *range(size - 2)]),
        "kinds": np.full(size, SpanKind.SAMPLED),
        "logprobs": np.full(size, -1.0),
        "versions": np.full(size, version),
        "turns": np.zeros(size),
    }
    return [values[name].astype(c.dtype) for name, c in COLUMNS.items()]


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
                    case ScoreGroup():
                        rewards = [summary.reward for summary in message.episodes]
                        await self._peer.deliver(GroupScore(message.group, rewards))

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


def small_run(folder: Path) -> BufferSettings:
    """A buffer in `folder` with small batches and segments."""
    return BufferSettings(
        address=f"ipc://{folder}/b.sock",
        rollout_batch_size=4,
        n_samples_per_prompt=3,
        async_buffer_size=2,
        max_staleness=2,
        heartbeat_s=0.2,
        liveness_s=20.0,
        segment_bytes=2000,
        keep_trajectories=0,
    )
