"""The queue of episodes, and which worker plays which.

Training episodes wait in the order (mint, index), so that old groups finish first; each goes to
the worker with most free capacity, siblings anywhere. Evaluation episodes may use a quarter of the
workers' capacity while training episodes wait. Beside training they are never more than a quarter
of the permits, for each may hold one; but while pushes wait for them and training is at rest
(nothing is played, nothing can be minted) they may use whatever is free.

    queued -> given to a worker -> failed -> (its last attempt is next: pausing) -> queued

The pause is there so that a service, or one worker after the other, that is away for some seconds
does not use up every attempt: what failed is being started again.
"""

import heapq
from collections import defaultdict

import msgspec

from agentrl.buffer.evaluations import Evaluations
from agentrl.buffer.groups import ENGINE_ATTEMPTS
from agentrl.buffer.ids import episode_seed
from agentrl.buffer.peers import Peer, Peers
from agentrl.buffer.state import State
from agentrl.types import EpisodeAssignment
from agentrl.wire.messages import Assign

__all__ = ["EpisodeQueue", "assign"]

EVALUATION_SHARE = 0.25


class EpisodeQueue:
    """Episodes that wait for a worker. An entry whose row moved on is skipped when it comes up.

    What pauses follows from the rows, so that a restarted buffer lets the same episodes wait, each
    for a whole pause.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._heap: list[tuple[int, int]] = []
        self._beginning: list[tuple[int, int]] = []
        self._pausing: list[tuple[float, tuple[int, int]]] = []
        for mint, index in filter(self._waits, state.episodes):
            self.push(mint, index)

    def push(self, mint: int, index: int) -> None:
        """Queue an episode; one that is down to its last attempt pauses first."""
        if self._state.episodes[mint, index].engine_failures == ENGINE_ATTEMPTS - 1:
            self._beginning.append((mint, index))
        else:
            heapq.heappush(self._heap, (mint, index))

    def wake(self, now: float) -> None:
        """Begin the pauses of what was pushed since the last call, and end those that are over."""
        end = now + self._state.settings.retry_pause_s
        for key in self._beginning:
            heapq.heappush(self._pausing, (end, key))
        self._beginning.clear()
        while self._pausing and self._pausing[0][0] <= now:
            heapq.heappush(self._heap, heapq.heappop(self._pausing)[1])

    def peek(self) -> tuple[int, int] | None:
        """The first waiting episode; forgets stale entries before it."""
        while self._heap and not self._waits(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop(self) -> None:
        heapq.heappop(self._heap)

    def __len__(self) -> int:
        keys = (*self._heap, *self._beginning, *(key for _, key in self._pausing))
        return sum(map(self._waits, keys))

    def _waits(self, key: tuple[int, int]) -> bool:
        row = self._state.episodes.get(key)
        return row is not None and row.worker is None and row.outcome is None


def assign(
    state: State, queue: EpisodeQueue, evaluations: Evaluations, peers: Peers, is_at_rest: bool
) -> None:
    """Give waiting episodes to workers until no worker or no episode is left. `is_at_rest`: no
    training episode is played or can be minted."""
    if queue.peek() is None and evaluations.waiting is None:
        return
    workers = peers.workers()
    share = _evaluation_share(state, workers)
    given: defaultdict[str, list[EpisodeAssignment]] = defaultdict(list)
    while (worker := _roomiest(workers)) is not None:
        episode = _next_episode(state, queue, evaluations, worker, share, is_at_rest)
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
    worker: Peer,
    share: int,
    is_at_rest: bool,
) -> EpisodeAssignment | None:
    waiting, wanted = queue.peek(), evaluations.waiting
    is_alone = wanted is not None and (not wanted.beside or (wanted.pinned and is_at_rest))
    if evaluations.num_claimed < share or (waiting is None and is_alone):
        evaluation = evaluations.claim(worker.name, state.minted + 1)
        if evaluation is not None:
            return evaluation
    if waiting is None:
        return None
    queue.pop()
    return _claim(state, waiting, worker.name)


def _evaluation_share(state: State, workers: list[Peer]) -> int:
    """Evaluation episodes that may be played beside training: each may hold a permit."""
    room = sum(peer.capacity for peer in workers)
    permits = state.settings.num_permits
    return max(1, int(EVALUATION_SHARE * (room if permits is None else min(room, permits))))


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
