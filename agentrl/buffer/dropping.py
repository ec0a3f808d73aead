"""`--staleness-policy drop`: groups that no lease can take without a token older than S.

    READY -> (too old for the next lease, so for every later one) -> RETIRED(stale) -> minted again

Judged at the next lease that will be made, as soon as its number or the weights change, so a charge
is returned at once. Nothing is dropped that the next lease could take, so what is leased holds no
token older than S; a lease that exists is never changed, and the learner masks what a recovery
makes old in it.

No deadlock: a group minted while the learner waits samples from the newest weights alone, which are
at most I - 1 <= S iterations old in the lease that is waited for.
"""

from agentrl.buffer import groups
from agentrl.buffer.minting import Minter
from agentrl.buffer.state import State
from agentrl.types import Fate

__all__ = ["Dropping"]


class Dropping:
    """Which READY groups were found fresh enough, for the lease and the weights that come next."""

    def __init__(self, state: State, minter: Minter) -> None:
        self._state = state
        self._minter = minter
        self._judged_for = (0, -1)
        self._fresh: set[int] = set()

    def drop(self) -> None:
        """Give every READY group that is too old the fate stale, under the policy drop."""
        state = self._state
        if state.settings.staleness_policy != "drop":
            return
        judged_for = (state.last_lease + 1, state.lineage.newest)
        if judged_for != self._judged_for:
            self._judged_for = judged_for
            self._fresh.clear()
        for mint in sorted(state.ready - self._fresh):
            if self._is_stale(mint):
                self._drop(mint)
            else:
                self._fresh.add(mint)
        self._fresh &= state.ready

    def _is_stale(self, mint: int) -> bool:
        state = self._state
        return any(
            state.lineage.age(version, state.last_lease + 1) > state.settings.max_staleness
            for version in state.sampled_tokens(mint)
        )

    def _drop(self, mint: int) -> None:
        state = self._state
        group, counts = state.groups[mint], state.sampled_tokens(mint)
        number = state.last_lease + 1
        oldest = max(counts, key=lambda version: state.lineage.age(version, number))
        state.put(state.pacer.dropped(counts.total()))
        reason = (
            f"tokens of version {oldest} would be {state.lineage.age(oldest, number)} iterations"
            f" old in lease {number}, and --max-staleness is {state.settings.max_staleness}"
        )
        groups.close(state, mint, Fate.STALE, reason)
        self._minter.again(group)
