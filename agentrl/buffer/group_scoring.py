"""Which groups wait for their scores, and which worker was asked.

    every outcome in -> ordered(worker) -> GroupScore       (worker lost -> ordered elsewhere)

Scoring that takes its worker down SCORING_ATTEMPTS times ends the group instead of the run. A group
whose scoring lost a worker, and an episode that did, are not given to the same worker: if it is
lost too, it must be clear through which of them.
"""

from collections import Counter

from agentrl.buffer import groups
from agentrl.buffer.peers import Peer, Peers
from agentrl.buffer.state import State
from agentrl.buffer.suspects import Suspects
from agentrl.types import Fate

__all__ = ["GroupScoring"]

SCORING_ATTEMPTS = 3


class GroupScoring:
    """Orders are volatile: a restarted buffer gives them again, and scores are idempotent."""

    def __init__(self, state: State, suspects: Suspects) -> None:
        self._state = state
        self._suspects = suspects
        self._waiting = {mint for mint in state.groups if groups.needs_judge(state, mint)}
        self._lost: Counter[int] = Counter()

    @property
    def num_waiting(self) -> int:
        """Groups that no worker was asked for yet."""
        return len(self._waiting)

    def is_suspected(self, worker: Peer) -> bool:
        """Whether this worker scores a group whose scoring lost a worker before."""
        return any(self._lost[mint] for mint in worker.scoring)

    def add(self, mint: int) -> None:
        """A group whose episodes all have an outcome."""
        self._waiting.add(mint)

    def settle(self, mint: int, peers: Peers) -> None:
        """The score is in, or the group has a fate."""
        self._waiting.discard(mint)
        del self._lost[mint]
        for peer in peers:
            peer.scoring.discard(mint)

    def lose(self, worker: Peer) -> None:
        """The worker is gone: its groups are scored elsewhere."""
        for mint in sorted(worker.scoring):
            self._lost[mint] += 1
            if self._lost[mint] < SCORING_ATTEMPTS:
                self._waiting.add(mint)
                continue
            reason = f"scoring took down {SCORING_ATTEMPTS} workers"
            groups.close(self._state, mint, Fate.ENV_ERROR, reason)
            del self._lost[mint]
        worker.scoring.clear()

    def repeat(self, worker: Peer) -> None:
        """The worker reconnected: what it was told may be lost."""
        self._waiting |= worker.scoring
        worker.scoring.clear()

    def order(self, peers: Peers) -> None:
        """Ask the least busy workers."""
        workers = peers.workers() if self._waiting else []
        if not workers:
            return
        for mint in sorted(self._waiting):
            fit = [w for w in workers if not self._lost[mint] or not self._suspects.any(w.held)]
            if not fit:
                continue
            worker = min(fit, key=lambda worker: len(worker.scoring))
            worker.scoring.add(mint)
            self._waiting.discard(mint)
            self._state.send(worker.connection, groups.scoring_order(self._state, mint))
