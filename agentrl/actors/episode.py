"""`EnvEpisodes`: episodes that the framework leads, turn by turn.

    reset -> turns -> close        close always runs; `restore` takes the place of `reset` where an
                                   earlier attempt was saved (`turns.py`)

The framework owns the budgets (turns, tool calls, context, time) and the tokens; the Env sees text
alone. A budget that runs out is a truncation: the episode is `done`, with its StopReason, and keeps
the reward it has earned. Time that runs out before the first token is none: in `reset` that is
`env_error`, later `engine_error`. A reward that its text does not explain is an `env_error` too,
where the Env says that it must (`rescore.py`).
"""

from collections.abc import Callable
from typing import Any

import anyio

from agentrl.actors.boundary import Boundary
from agentrl.actors.limits import Limits
from agentrl.actors.player import Attempt
from agentrl.actors.report import PlayedEpisode
from agentrl.actors.rescore import RewardAudit
from agentrl.actors.snapshots import EpisodeSnapshot
from agentrl.actors.turns import Episode
from agentrl.actors.writing import Writers
from agentrl.envs.env import Env, EnvContext, bound_env
from agentrl.tokens.formats.base import ChatFormat

__all__ = ["EnvEpisodes"]


class EnvEpisodes:
    """A `Strategy`: one kind of Env in one chat format. Binds what `make_env` makes to `context`
    and the episode. Keeps how many rewards it has checked. `reports_answers`: the filter of groups
    reads what episodes say, whatever the Env does."""

    def __init__(
        self,
        make_env: Callable[[], Env],
        chat: ChatFormat,
        limits: Limits,
        context: EnvContext = EnvContext(),  # noqa: B008 - frozen
        *,
        reports_answers: bool = False,
    ) -> None:
        self.reports_answers = reports_answers
        self._make_env, self._context = make_env, context
        self._chat = chat
        self._limits = limits
        self._writers = Writers()
        self._audit = RewardAudit(make_env, context)

    async def play(self, attempt: Attempt, boundary: Boundary) -> PlayedEpisode:
        """See `Strategy`."""
        snapshot = None
        if attempt.saved is not None:
            snapshot = EpisodeSnapshot.decode(attempt.saved)
            attempt.go_on_after(snapshot.played_s)
        row = None
        limits = self._limits.of(attempt.assignment)
        episode = Episode(
            attempt, self._chat, limits, self._writers, reports_answer=self.reports_answers
        )
        with anyio.move_on_after(limits.episode_timeout_s - attempt.played_s()) as deadline:
            row = await self._play(episode, attempt, boundary, snapshot)
        if deadline.cancelled_caught:
            episode.run_out_of_time()
        played = episode.finished(attempt.played_s(), self._audit.metrics())
        if row is not None and episode.final_text is not None:
            text, reward = episode.final_text, played.report.reward
            await self._audit.check(attempt.assignment, row, text, reward, boundary)
        return played

    async def _play(
        self,
        episode: Episode,
        attempt: Attempt,
        boundary: Boundary,
        snapshot: EpisodeSnapshot | None,
    ) -> dict[str, Any] | None:
        """Returns the task's row as it was, when the reward is to be checked."""
        is_evaluation = attempt.assignment.evaluation is not None
        env = bound_env(self._make_env, self._context, is_evaluation=is_evaluation)
        try:
            row = self._audit.keep_task(env, attempt.assignment)
            if snapshot is None:
                await episode.begin(env)
            else:
                await episode.resume(env, snapshot)
            await episode.run(env)
        finally:
            await boundary.close(env, attempt.whose)
        return row
