"""The queue of episodes, and which worker plays which.

Training episodes wait in the order (mint, index), so that old groups finish first; each goes to
the worker with most free capacity, siblings anywhere. Evaluation episodes may use a quarter of the
workers' capacity while training episodes wait. Beside training they are never more than a quarter
of the permits, for each may hold one; but while pushes wait for them and training is at rest
(nothing is played, nothing can be minted) they may use whatever is free.

    queued -> given to a worker -> failed -> (its last attempt is next: pausing) -> queued

Episodes that were on a worker when it was lost wait in a line of their own: not every worker may
have the first of them (`suspects`), and nobody else waits for it.

The pause is there so that a service, or one worker after the other, that is away for some seconds
does not use up every attempt: what failed is being started again.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import msgspec

from agentrl.buffer.evaluations import Evaluations
from agentrl.buffer.groups import ENGINE_ATTEMPTS
from agentrl.buffer.ids import episode_seed
from agentrl.buffer.peers import Peer, Peers
from agentrl.buffer.state import State
from agentrl.buffer.suspects import Suspects
from agentrl.types import EpisodeAssignment, EpisodeId
from agentrl.wire.messages import Assign

__all__ = ["EpisodeQueue", "assign"]

EVALUATION_SHARE = 0.25


class EpisodeQueue:
    """Episodes that wait for a worker. An entry whose row moved on is skipped when it comes up.

    What pauses follows from the rows, so that a restarted buffer lets the same episodes wait, each
    for a whole pause.
    """

    def __init__(self, state: State, suspects: Suspects) -> None:
        self._state = state
        self._suspects = suspects
        self._heap: list[tuple[int, int]] = []
        self._suspected: list[tuple[int, int]] = []
        self._beginning: list[tuple[int, int]] = []
        self._pausing: list[tuple[float, tuple[int, int]]] = []
        for mint, index in filter(self._waits, state.episodes):
            self.push(mint, index)

    def push(self, mint: int, index: int) -> None:
        """Queue an episode; one that is down to its last attempt pauses first."""
        if self._state.episodes[mint, index].engine_failures == ENGINE_ATTEMPTS - 1:
            self._beginning.append((mint, index))
        else:
            self._enter((mint, index))

    def wake(self, now: float) -> None:
        """Begin the pauses of what was pushed since the last call, and end those that are over."""
        end = now + self._state.settings.retry_pause_s
        for key in self._beginning:
            heapq.heappush(self._pausing, (end, key))
        self._beginning.clear()
        while self._pausing and self._pausing[0][0] <= now:
            self._enter(heapq.heappop(self._pausing)[1])

    def peek(self, may_have: Callable[[EpisodeId], bool] | None = None) -> tuple[int, int] | None:
        """The first waiting episode that a worker may have, or that there is; forgets stale entries
        before it."""
        first, suspected = self._first(self._heap), self._first(self._suspected)
        if suspected is not None and may_have is not None:
            id = self._state.episode_id(self._state.episodes[suspected])
            suspected = suspected if may_have(id) else None
        return min((key for key in (first, suspected) if key is not None), default=None)

    def pop(self, key: tuple[int, int]) -> None:
        """Take out what `peek` has found."""
        heapq.heappop(self._heap if self._heap and self._heap[0] == key else self._suspected)

    def _first(self, heap: list[tuple[int, int]]) -> tuple[int, int] | None:
        while heap and not self._waits(heap[0]):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _enter(self, key: tuple[int, int]) -> None:
        row = self._state.episodes.get(key)
        if row is None:  # its group has ended while it paused
            return
        is_suspected = self._state.episode_id(row) in self._suspects
        heapq.heappush(self._suspected if is_suspected else self._heap, key)

    def __len__(self) -> int:
        keys = (*self._heap, *self._suspected, *self._beginning, *(key for _, key in self._pausing))
        return sum(map(self._waits, keys))

    def _waits(self, key: tuple[int, int]) -> bool:
        row = self._state.episodes.get(key)
        return row is not None and row.worker is None and row.outcome is None


def assign(
    state: State,
    queue: EpisodeQueue,
    evaluations: Evaluations,
    may_have: Callable[[Peer, EpisodeId], bool],
    peers: Peers,
    is_at_rest: bool,
) -> None:
    """Give waiting episodes to workers until no worker or no episode is left. `may_have`: whether a
    worker may play this one; `is_at_rest`: no training episode is played or can be minted."""
    if queue.peek() is None and evaluations.waiting is None:
        return
    workers = peers.workers()
    share = _evaluation_share(state, workers)
    given: defaultdict[str, list[EpisodeAssignment]] = defaultdict(list)
    willing = list(workers)
    while (worker := _roomiest(willing)) is not None:
        episode = _next_episode(state, queue, evaluations, may_have, worker, share, is_at_rest)
        if episode is None:
            willing.remove(worker)  # what another worker may have is none for this one
            continue
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
    may_have: Callable[[Peer, EpisodeId], bool],
    worker: Peer,
    share: int,
    is_at_rest: bool,
) -> EpisodeAssignment | None:
    waiting, wanted = queue.peek(partial(may_have, worker)), evaluations.waiting
    next_one = evaluations.next_episode
    if next_one is not None and not may_have(worker, next_one):
        wanted = None
    is_alone = wanted is not None and (not wanted.beside or (wanted.pinned and is_at_rest))
    if wanted is not None and (evaluations.num_claimed < share or (waiting is None and is_alone)):
        evaluation = evaluations.claim(worker.name, state.minted + 1)
        if evaluation is not None:
            return evaluation
    if waiting is None:
        return None
    queue.pop(waiting)
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
