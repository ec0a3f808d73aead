"""The queues of episodes, and which worker plays which.

Training episodes wait in the order (mint, index), so that old groups finish first; each goes to
the worker with most room for training, siblings anywhere. Evaluation episodes may use a quarter of
the workers' capacity while training episodes wait. Beside training they are never more than a
quarter of the permits, for each may hold one; but while pushes wait for them and training is at
rest (nothing is played, nothing can be minted) they may use whatever is free. Where there is room
for all, which worker a training episode goes to does not depend on them.

    queued -> given to a worker -> failed -> (its last attempt is next: pausing) -> queued

Episodes that were on a worker when it was lost wait in a line of their own: not every worker may
have the first of them (`suspects`), and nobody else waits for it.

The pause is there so that a service, or one worker after the other, that is away for some seconds
does not use up every attempt: what failed is being started again.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from operator import attrgetter

import msgspec

from agentrl.buffer.groups import ENGINE_ATTEMPTS
from agentrl.buffer.ids import GroupKind, episode_seed, kind_of
from agentrl.buffer.peers import Peer, Peers
from agentrl.buffer.state import State
from agentrl.buffer.suspects import Suspects
from agentrl.types import EpisodeAssignment, EpisodeId
from agentrl.wire.messages import Assign

__all__ = ["EpisodeQueue", "Key", "assign"]

EVALUATION_SHARE = 0.25
_FREE = attrgetter("free")
#: Number of the group, and index in it.
Key = tuple[int, int]


class EpisodeQueue:
    """Episodes of a kind that wait for a worker. An entry whose row moved on is skipped when it
    comes up.

    What pauses follows from the rows, so that a restarted buffer lets the same episodes wait, each
    for a whole pause.
    """

    def __init__(self, kind: GroupKind, state: State, suspects: Suspects) -> None:
        self._state = state
        self._suspects = suspects
        self._heap: list[Key] = []
        self._suspected: list[Key] = []
        self._beginning: list[Key] = []
        self._pausing: list[tuple[float, Key]] = []
        for mint, index in filter(self._waits, state.episodes):
            if kind_of(mint) == kind:
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

    def peek(self, may_have: Callable[[EpisodeId], bool] | None = None) -> Key | None:
        """The first waiting episode that a worker may have, or that there is; forgets stale entries
        before it."""
        first, suspected = self._first(self._heap), self._first(self._suspected)
        if suspected is not None and may_have is not None:
            id = self._state.episode_id(self._state.episodes[suspected])
            suspected = suspected if may_have(id) else None
        return min((key for key in (first, suspected) if key is not None), default=None)

    def pop(self, key: Key) -> None:
        """Take out what `peek` has found."""
        heapq.heappop(self._heap if self._heap and self._heap[0] == key else self._suspected)

    def _first(self, heap: list[Key]) -> Key | None:
        while heap and not self._waits(heap[0]):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _enter(self, key: Key) -> None:
        row = self._state.episodes.get(key)
        if row is None:  # its group has ended while it paused
            return
        is_suspected = self._state.episode_id(row) in self._suspects
        heapq.heappush(self._suspected if is_suspected else self._heap, key)

    def __len__(self) -> int:
        keys = (*self._heap, *self._suspected, *self._beginning, *(key for _, key in self._pausing))
        return sum(map(self._waits, keys))

    def _waits(self, key: Key) -> bool:
        row = self._state.episodes.get(key)
        return row is not None and row.worker is None and row.outcome is None


def assign(
    state: State,
    queues: dict[GroupKind, EpisodeQueue],
    may_have: Callable[[Peer, EpisodeId], bool],
    peers: Peers,
    is_at_rest: bool,
) -> None:
    """Give waiting episodes to workers until no worker or no episode is left. `may_have`: whether a
    worker may play this one; `is_at_rest`: no training episode is played or can be minted."""
    waiting = [kind for kind, queue in queues.items() if queue.peek() is not None]
    if not waiting:
        return
    workers = peers.workers()
    share = _evaluation_share(state, workers)
    evals = _held_evals(state, peers)
    given: defaultdict[str, list[EpisodeAssignment]] = defaultdict(list)

    def for_training(worker: Peer) -> int:
        """Where evaluation episodes take no room, but for a worker that is full."""
        return worker.free and worker.free + evals[worker.name]

    def give(kind: GroupKind, may: Callable[[Peer, Key], bool]) -> None:
        queue, willing = queues[kind], list(workers) if kind in waiting else []
        room = for_training if kind == "train" and state.evals else _FREE
        while willing and (worker := max(willing, key=room)).free:
            key = queue.peek(partial(may_have, worker))
            if key is None or not may(worker, key):
                willing.remove(worker)  # what another worker may have is none for this one
                willing = willing if queue.peek() is not None else []
                continue
            queue.pop(key)
            episode = _claim(state, key, worker.name)
            worker.held.add(episode.id)
            evals[worker.name] += kind == "eval"
            given[worker.name].append(episode)

    def is_alone(worker: Peer, key: Key) -> bool:
        order = state.evals[key[0]].order
        is_last = queues["train"].peek(partial(may_have, worker)) is None
        return is_last and (not order.beside or (order.pinned and is_at_rest))

    give("eval", lambda worker, key: evals.total() < share)
    give("train", lambda worker, key: True)
    give("eval", is_alone)
    for worker in workers:
        if worker.name in given:
            state.send(worker.connection, Assign(given[worker.name]))


def _held_evals(state: State, peers: Peers) -> Counter[str]:
    """How many evaluation episodes each worker holds, by name."""
    held = ((peer.name, id) for peer in peers for id in peer.held) if state.evals else ()
    return Counter(name for name, id in held if id.group in state.eval_mints)


def _evaluation_share(state: State, workers: list[Peer]) -> int:
    """Evaluation episodes that may be played beside training: each may hold a permit, and where
    evaluations have engines of their own, one of those."""
    room = sum(peer.capacity for peer in workers)
    apart, permits = state.settings.num_eval_permits, state.settings.num_permits
    if apart is not None:
        return max(1, min(int(EVALUATION_SHARE * room), apart))
    return max(1, int(EVALUATION_SHARE * (room if permits is None else min(room, permits))))


def _claim(state: State, key: Key, worker: str) -> EpisodeAssignment:
    """An evaluation's episode has permits after those of every group that is minted."""
    row = msgspec.structs.replace(state.episodes[key], worker=worker)
    state.put(row)
    id, group = state.episode_id(row), state.evals.get(row.mint)
    if group is None:
        seed = episode_seed(state.settings.rollout_seed, row.mint, row.index)
        task = state.groups[row.mint].task
        return EpisodeAssignment(id, row.mint, seed, task, state.settings.sampling_of(task))
    order = group.order
    seed, task = episode_seed(order.seed, group.position, row.index), order.tasks[group.position]
    return EpisodeAssignment(id, state.minted + 1, seed, task, order.sampling, order.name)
