"""The queue of episodes, and which worker plays which.

Training episodes wait in the order (mint, index), so that old groups finish first; each goes to
the worker with most free capacity, siblings anywhere. Evaluation episodes may use a quarter of the
workers' capacity while training episodes wait, and whatever is free when none does.
"""

import heapq
from collections import defaultdict

import msgspec

from agentrl.buffer.evaluations import Evaluations
from agentrl.buffer.ids import episode_seed
from agentrl.buffer.peers import Peer, Peers
from agentrl.buffer.state import State
from agentrl.types import EpisodeAssignment
from agentrl.wire.messages import Assign

__all__ = ["EpisodeQueue", "assign"]

EVALUATION_SHARE = 0.25


class EpisodeQueue:
    """Episodes that wait for a worker. An entry whose row moved on is skipped when it comes up."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._heap = [key for key in state.episodes if self._waits(key)]
        heapq.heapify(self._heap)

    def push(self, mint: int, index: int) -> None:
        heapq.heappush(self._heap, (mint, index))

    def peek(self) -> tuple[int, int] | None:
        """The first waiting episode; forgets stale entries before it."""
        while self._heap and not self._waits(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop(self) -> None:
        heapq.heappop(self._heap)

    def __len__(self) -> int:
        return sum(self._waits(key) for key in self._heap)

    def _waits(self, key: tuple[int, int]) -> bool:
        row = self._state.episodes.get(key)
        return row is not None and row.worker is None and row.outcome is None


def assign(state: State, queue: EpisodeQueue, evaluations: Evaluations, peers: Peers) -> None:
    """Give waiting episodes to workers until no worker or no episode is left."""
    workers = peers.workers()
    given: defaultdict[str, list[EpisodeAssignment]] = defaultdict(list)
    while (worker := _roomiest(workers)) is not None:
        episode = _next_episode(state, queue, evaluations, workers, worker)
        if episode is None:
            break
        worker.held.add(episode.id)
        given[worker.name].append(episode)
    for worker in workers:
        if worker.name in given:
            state.send(worker.connection, Assign(given[worker.name]))


def _roomiest(workers: list[Peer]) -> Peer | None:
    best = max(workers, key=lambda worker: worker.free, default=None)
    return best if best is not None and best.free > 0 else None


def _next_episode(
    state: State,
    queue: EpisodeQueue,
    evaluations: Evaluations,
    workers: list[Peer],
    worker: Peer,
) -> EpisodeAssignment | None:
    waiting = queue.peek()
    share = max(1, int(EVALUATION_SHARE * sum(peer.capacity for peer in workers)))
    if waiting is None or evaluations.num_claimed < share:
        evaluation = evaluations.claim(worker.name, state.minted + 1)
        if evaluation is not None:
            return evaluation
    if waiting is None:
        return None
    queue.pop()
    return _claim(state, waiting, worker.name)


def _claim(state: State, key: tuple[int, int], worker: str) -> EpisodeAssignment:
    row = msgspec.structs.replace(state.episodes[key], worker=worker)
    state.put(row)
    return EpisodeAssignment(
        id=state.episode_id(row),
        mint=row.mint,
        seed=episode_seed(state.settings.rollout_seed, row.mint, row.index),
        task=state.groups[row.mint].task,
        sampling=state.settings.sampling,
    )
