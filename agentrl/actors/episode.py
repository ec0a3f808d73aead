"""`EpisodePlayer`: one episode from assignment to report.

    reset -> turns -> close        close always runs; `restore` takes the place of `reset` where an
                                   earlier attempt was saved (`turns.py`)

The framework owns the budgets (turns, tool calls, context, time) and the tokens; the Env sees text
alone. How it ended is always said: an exception of user code is the outcome `env_error`, one of the
engines `engine_error`; neither is ever a zero reward. A budget that runs out is a truncation: the
episode is `done`, with its StopReason, and keeps the reward it has earned. Time that runs out
before the first token is none: in `reset` that is `env_error`, later `engine_error`. A first prompt
that does not fit is the data's fault: `filtered`. A reward that its text does not explain is an
`env_error` too, where the Env says that it must (`rescore.py`).
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

import anyio

from agentrl.actors.boundary import Boundary
from agentrl.actors.closing import CLOSE_TIMEOUT_S, close_env
from agentrl.actors.failures import Failures
from agentrl.actors.limits import Limits
from agentrl.actors.report import PlayedEpisode, require_sendable
from agentrl.actors.rescore import RewardAudit
from agentrl.actors.snapshots import EpisodeSnapshot, Save
from agentrl.actors.turns import Episode
from agentrl.actors.writing import Writers
from agentrl.envs.env import Env
from agentrl.tokens.formats.base import ChatFormat
from agentrl.types import EpisodeAssignment, EpisodeId, TurnClient

__all__ = ["EnvFactory", "EpisodePlayer"]


class EnvFactory(Protocol):
    """Makes the Env of one episode, its services set."""

    def __call__(self) -> Env: ...


class EpisodePlayer:
    """Plays episodes of one kind of Env in one chat format. Of what they were it keeps only how
    many rewards it has checked."""

    def __init__(
        self,
        make_env: EnvFactory,
        chat: ChatFormat,
        limits: Limits,
        now: Callable[[], float] = time.monotonic,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self._make_env = make_env
        self._chat = chat
        self._limits = limits
        self._now = now
        self._close_timeout_s = close_timeout_s
        self._failures = Failures()
        self._writers = Writers()
        self._audit = RewardAudit(make_env, self._close)

    async def play(
        self,
        assignment: EpisodeAssignment,
        client: TurnClient,
        saved: bytes | None = None,
        save: Save | None = None,
    ) -> PlayedEpisode:
        """Play to the end; raises nothing but a cancellation of the task that runs it.

        `saved`: an earlier attempt at this episode, to go on from. `save` gets what is to be kept
        after each turn but the last, if the Env can be saved.
        """
        started = self._now()
        boundary = Boundary()
        row = None
        try:
            snapshot = None if saved is None else EpisodeSnapshot.decode(saved)
            started -= 0.0 if snapshot is None else snapshot.played_s
            left_s = self._limits.episode_timeout_s - (self._now() - started)
            episode = Episode(
                assignment,
                self._chat,
                self._limits,
                client,
                lambda: self._now() - started,
                self._writers,
            )
            with anyio.move_on_after(left_s) as deadline:
                row = await self._play(episode, assignment, boundary, snapshot, save)
            if deadline.cancelled_caught:
                episode.run_out_of_time()
            played = episode.finished(self._now() - started, self._audit.metrics())
            require_sendable(played)
            if row is not None and episode.final_text is not None:
                text, reward = episode.final_text, played.report.reward
                await self._audit.check(assignment, row, text, reward, boundary)
            return played
        except BaseException as failure:
            await boundary.take(failure)
            return self._failures.report(assignment, failure, self._now() - started)

    async def _play(
        self,
        episode: Episode,
        assignment: EpisodeAssignment,
        boundary: Boundary,
        snapshot: EpisodeSnapshot | None,
        save: Save | None,
    ) -> dict[str, Any] | None:
        """Returns the task's row as it was, when the reward is to be checked."""
        env = self._make_env()
        try:
            row = self._audit.keep_task(env, assignment)
            if snapshot is None:
                await episode.begin(env)
            else:
                await episode.resume(env, snapshot)
            await episode.run(env, save if env.can_be_saved else None)
        finally:
            await self._close(env, assignment.id, boundary)
        return row

    async def _close(self, env: Env, id_: EpisodeId, boundary: Boundary) -> None:
        await close_env(env, f"episode {id_}", boundary, self._close_timeout_s)
