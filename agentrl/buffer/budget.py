"""`--max-total-sampled-tokens`: how a run ends that has sampled its tokens.

    below it    groups are minted as ever
    from it on  none is; a group that has begun is finished and trained, the last lease may be short
                MINTED, no episode of it was ever given to a worker -> RETIRED(cancelled)

Counted is what the ledger has rows of: the sampled tokens of every training episode that is done,
whatever became of its group. So a number is counted once, in the commit that takes the report, and
a program that continues the run counts on. Not counted: evaluations, and attempts that failed,
which report no tokens. What had begun when the budget was spent goes beyond it.
"""

from agentrl.buffer.assignments import Assignments
from agentrl.buffer.state import State
from agentrl.types import Fate, GroupState

__all__ = ["TokenBudget"]


class TokenBudget:
    """The budget of a run, if it has one."""

    def __init__(self, state: State, assignments: Assignments) -> None:
        self._state = state
        self._assignments = assignments
        self._limit = state.settings.max_total_sampled_tokens
        self._is_told = False

    @property
    def is_spent(self) -> bool:
        """Whether no further group may be minted."""
        return self._limit is not None and self._state.total_sampled_tokens >= self._limit

    @property
    def reason(self) -> str | None:
        """Why the run ends, once the budget is spent."""
        if not self.is_spent:
            return None
        spent = self._state.total_sampled_tokens
        return f"{spent} tokens are sampled of --max-total-sampled-tokens {self._limit}"

    def end(self) -> None:
        """Once it is spent: give up the groups that have not begun, and tell so."""
        reason = self.reason
        if reason is None:
            return
        state = self._state
        left = [mint for mint in state.unleased if not self._has_begun(mint)]
        if left:
            self._assignments.cut(left, Fate.CANCELLED, reason)
        if not self._is_told:
            self._is_told = True
            state.notify("budget", reason=reason, open=len(state.unleased), cancelled=len(left))

    def _has_begun(self, mint: int) -> bool:
        if self._state.groups[mint].state is not GroupState.MINTED:
            return True
        rows = self._state.group_episodes(mint)
        return any(row.worker is not None or row.outcome or row.attempt for row in rows)
