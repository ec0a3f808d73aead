"""How attempts at episodes ended, so that what is played again is seen.

An episode whose Env fails on some calls is played again on a fresh one. Its group then trains on an
attempt that avoided the failing call: a bias that no fate tells.
"""

from collections import Counter

from agentrl.types import EpisodeId, Outcome

__all__ = ["Attempts"]

_FAILED = (Outcome.ENV_ERROR, Outcome.ENGINE_ERROR, Outcome.POISON)


class Attempts:
    """Counts since this process began, evaluation included.

    `played`: episodes of which an attempt has ended; `retried`: those of them that failed and were
    queued again; `lost`: those that failed for good; `failed`: attempts that failed, by outcome;
    `first`: by outcome, the first of these: its episode, worker and error; `too_long`: episodes
    whose first prompt did not fit, which is no failure.
    """

    def __init__(self) -> None:
        self.played = self.retried = self.lost = self.too_long = 0
        self.failed: Counter[Outcome] = Counter()
        self.first: dict[Outcome, dict[str, str]] = {}

    def ended(
        self,
        id: EpisodeId,
        worker: str | None,
        outcome: Outcome,
        error: str | None,
        *,
        before: int,
        again: bool,
        given_up: bool = False,
    ) -> None:
        """An attempt ended after `before` others had failed; `again`: the episode is queued once
        more; `given_up`: the user's code has taken it and left it out."""
        self.played += before == 0
        self.too_long += outcome is Outcome.FILTERED and not given_up
        if outcome in (Outcome.DONE, Outcome.FILTERED):
            return
        if outcome not in _FAILED:
            outcome = Outcome.ENGINE_ERROR
        self.retried += again and before == 0
        self.lost += not again
        self.failed[outcome] += 1
        facts = {"episode": str(id), "worker": worker or "", "error": error or ""}
        self.first.setdefault(outcome, facts)

    def figures(self) -> dict[str, float]:
        """The counts by name, each outcome's too when it is 0."""
        return {
            "played_episodes": self.played,
            "retried_episodes": self.retried,
            "failed_episodes": self.lost,
            "too_long_prompts": self.too_long,
            **{f"failed_attempts/{outcome}": self.failed[outcome] for outcome in _FAILED},
        }
