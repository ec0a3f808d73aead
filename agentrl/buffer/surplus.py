"""With S = 0: what is left over when a lease is made.

    MINTED or READY -> (the lease is made without it) -> RETIRED(surplus) -> minted again, if it
                                                                             was unfinished

Weights that are trained on the lease follow, so no token that was sampled until now could be
trained later. `--over-sampling-batch-size` is why more groups than a lease needs are in the making;
a filter takes some of them, and what it leaves beyond N is the price of not waiting.

The task of a group that was unfinished comes again, before others and from its prompt, or else slow
tasks would be trained less than quick ones; without `--partial-rollout` it does not. A group that
was READY has had its turn.
"""

from agentrl.buffer.assignments import Assignments
from agentrl.buffer.minting import Minter
from agentrl.buffer.state import State
from agentrl.types import Fate

__all__ = ["Surplus"]


class Surplus:
    """`num_tokens`: sampled tokens of finished episodes that were given up, since this process
    began."""

    def __init__(self, state: State, assignments: Assignments, minter: Minter) -> None:
        self._state = state
        self._assignments = assignments
        self._minter = minter
        self.num_tokens = 0

    def drop(self) -> None:
        """Give every group without a lease the fate surplus; a lease was just made."""
        state = self._state
        left = {mint: state.groups[mint] for mint in sorted(state.unleased)}
        if not (state.settings.is_on_policy and left):
            return
        self.num_tokens += sum(state.sampled_tokens(mint).total() for mint in left)
        reason = (
            f"lease {state.last_lease} was full without it, and no later one may hold its tokens"
            " (--max-staleness 0)"
        )
        self._assignments.cut(left, Fate.SURPLUS, reason)
        if state.settings.partial_rollout:
            for group in left.values():
                if group.rewards is None:
                    self._minter.again(group)
