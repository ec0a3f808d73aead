"""`Player`: one episode from assignment to report, whoever leads it.

    EnvEpisodes      the framework leads: it asks the Env turn by turn (`episode.py`)
    RolloutEpisodes  the agent leads: it calls its model as it likes (`rollouts.py`)
    Demonstrations   nobody plays: a dialogue is imitated (`demonstration.py`)

How an episode ended is always said: an exception of user code is the outcome `env_error`, one of
the engines `engine_error`, a prompt that does not fit is the data's fault, `filtered`. None is ever
a zero reward. A report that the buffer could not take is the Env's error too.
"""

import time
from collections.abc import Callable
from typing import Protocol

from agentrl.actors.boundary import CLOSE_TIMEOUT_S, Boundary, Raised, isolated
from agentrl.actors.failures import Failures
from agentrl.actors.report import PlayedEpisode, require_sendable
from agentrl.actors.snapshots import Save
from agentrl.actors.taught import Teacher, taught
from agentrl.types import EpisodeAssignment, TurnClient

__all__ = ["Attempt", "Player", "Strategy"]


class Attempt:
    """One attempt at an episode, and how long it has been played.

    `saved`: what an earlier attempt left, to go on from. `save` gets what is to be kept after each
    turn but the last, where the strategy can say it.
    """

    def __init__(
        self,
        assignment: EpisodeAssignment,
        client: TurnClient,
        saved: bytes | None,
        save: Save | None,
        now: Callable[[], float],
    ) -> None:
        self.assignment = assignment
        self.client = client
        self.saved = saved
        self.save = save
        self._now = now
        self._began = now()

    @property
    def whose(self) -> str:
        """As in `episode 00000001/0#0`, for logs."""
        return f"episode {self.assignment.id}"

    def played_s(self) -> float:
        """Seconds that it has been played, earlier attempts included."""
        return self._now() - self._began

    def go_on_after(self, played_s: float) -> None:
        """Count the seconds of an earlier attempt that this one continues."""
        self._began -= played_s


class Strategy(Protocol):
    """How episodes of a run are led."""

    async def play(self, attempt: Attempt, boundary: Boundary) -> PlayedEpisode:
        """Play to the end. Raises what ended the episode otherwise; `boundary` is that of the task
        in which this runs."""
        ...


class Player:
    """Plays episodes by one strategy. `teacher`: who is asked about the tokens of each episode that
    is to be trained."""

    def __init__(
        self,
        strategy: Strategy,
        now: Callable[[], float] = time.monotonic,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
        teacher: Teacher | None = None,
    ) -> None:
        self._strategy = strategy
        self._teacher = teacher
        self._now = now
        self._close_timeout_s = close_timeout_s
        self._failures = Failures()

    async def play(
        self,
        assignment: EpisodeAssignment,
        client: TurnClient,
        saved: bytes | None = None,
        save: Save | None = None,
    ) -> PlayedEpisode:
        """Play to the end; raises nothing but a cancellation of the task that calls this."""
        attempt = Attempt(assignment, client, saved, save, self._now)

        async def play(boundary: Boundary) -> PlayedEpisode:
            played = await self._strategy.play(attempt, boundary)
            if self._teacher is not None and assignment.evaluation is None:
                played = await taught(played, self._teacher)
            require_sendable(played)
            return played

        played = await isolated(play, "the Env", self._close_timeout_s)
        if isinstance(played, Raised):
            return self._failures.report(assignment, played.failure, attempt.played_s())
        return played
