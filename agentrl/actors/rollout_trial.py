"""Episodes of a rollout against a scripted policy, each under limits of time: what
`rollout_contract` tries promises with.

    make -> solve, its calls answered by a script -> close

The agent calls its model as in a run, by HTTP or in this process, through the recording endpoint.
"""

import asyncio
from typing import Any, cast

import msgspec

from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.rollouts import RolloutEpisodes
from agentrl.actors.scripted import Script, Scripted, shipped_format
from agentrl.config.run import RunConfig
from agentrl.envs.check.harness import Hold, Problem, Trial, timed
from agentrl.envs.check.subject import Subject
from agentrl.envs.check.watch import BlockedError
from agentrl.envs.env import Env
from agentrl.envs.registry import name_of
from agentrl.envs.rollout import Chat, Rollout
from agentrl.errors import InfrastructureError
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    Outcome,
    SamplingParams,
    StopReason,
)
from agentrl.user_traceback import words_of

__all__ = ["Played", "RolloutTrial"]

#: Tokens of prompt and response together; more than the script and most agents say.
MAX_CONTEXT = 128 * 1024
#: How a budget ends an episode; the rest is the agent's own doing.
_BUDGETS = (
    StopReason.TURN_LIMIT,
    StopReason.TOOL_CALL_LIMIT,
    StopReason.CONTEXT_LIMIT,
    StopReason.RESPONSE_LIMIT,
    StopReason.TIME_LIMIT,
)


class Played(msgspec.Struct, frozen=True):
    """An episode that has ended. `raised`, `returned`: what `solve` did; `held_s`: the longest that
    it held the event loop; `num_answered`: calls of its model."""

    report: EpisodeReport
    raised: BaseException | None
    returned: bool
    held_s: float
    num_answered: int

    @property
    def is_late(self) -> bool:
        """Whether it was ended by the limit of time, as a truncation or an error."""
        is_cut = self.report.stop_reason is StopReason.TIME_LIMIT
        return is_cut or "(--episode-timeout-s)" in (self.report.error or "")

    @property
    def failed_on_policy(self) -> bool:
        """Whether `solve` raised after its model had answered: in a run, an `env_error`."""
        is_error = self.report.outcome is Outcome.ENV_ERROR
        return is_error and self.raised is not None and self.num_answered > 0

    @property
    def has_reward(self) -> bool:
        """Whether the agent has said what its episode is worth, as it returned or by what it says
        of its exceptions."""
        is_done = self.report.outcome is Outcome.DONE
        return is_done and (self.returned or self.report.stop_reason not in _BUDGETS)


class RolloutTrial(Trial):
    """Plays episodes. `known`: names of exceptions that have been said."""

    def __init__(self, subject: Subject, limit_s: float) -> None:
        super().__init__(subject, name_of(subject.cls), limit_s)
        self.known: set[str] = set()

    async def play(
        self, what: str, policy: Scripted | Script, *, max_turns: int | None = None
    ) -> Played:
        """One episode with a policy, which is `what`. Raises BlockedError, InfrastructureError for
        what is no fault of the agent's, BrokenError where even the end takes too long."""
        policy = policy if isinstance(policy, Scripted) else Scripted(shipped_format(), policy)
        watched = _Watched(self.subject)
        try:
            with self.within(what, 1.5 * self.limit_s):
                report = await self._play(policy, watched, max_turns)
        finally:  # it says more than that time was up in the same moment
            if isinstance(watched.failure, BlockedError):
                raise watched.failure
        if report.outcome is Outcome.ENGINE_ERROR:
            raise InfrastructureError(f"{self.name}, on {what}: {report.error}")
        held_s = watched.hold.longest_s
        return Played(report, watched.failure, watched.returned, held_s, policy.num_answered)

    async def _play(
        self, policy: Scripted, watched: "_Watched", max_turns: int | None
    ) -> EpisodeReport:
        usual, task = RunConfig(), self.subject.task
        limits = Limits(
            max_context=MAX_CONTEXT,
            max_prompt=MAX_CONTEXT - 2,
            max_turns=usual.max_turns if max_turns is None else max_turns,
            max_tool_calls=usual.max_tool_calls,
            episode_timeout_s=self.limit_s,
        )
        sampling = SamplingParams(max_new_tokens=usual.rollout_max_response_len)
        episode = EpisodeAssignment(EpisodeId("checked", 0), 1, self.subject.seed, task, sampling)
        async with Endpoint() as endpoint:
            context = self.subject.context
            player = Player(RolloutEpisodes(watched.make, policy.chat, limits, endpoint, context))
            return (await player.play(episode, policy)).report

    def problem_of(self, what: str, played: Played) -> Problem:
        """Why an episode on `what` has no reward, or None."""
        report = played.report
        if played.is_late:
            return f"{self.name} was not done {self.limit_s:g} s after it began, on {what}"
        if played.has_reward:
            return None
        if report.outcome is Outcome.DONE:
            return (
                f"{self.name} returned no reward, on {what}: it was ended by {report.stop_reason}"
            )
        if played.raised is not None:
            return f"{self.name} raised {words_of(played.raised)} on {what}"
        return f"{report.error}, on {what}"


class _Watched:
    """Makes the rollout of an episode; knows what it raised, and how long it held the loop."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.failure: BaseException | None = None
        self.returned = False
        self.hold = Hold()

    def make(self) -> Env:
        env = cast(Rollout, self._subject.make())
        solve = env.solve

        async def watched(task: dict[str, Any], chat: Chat) -> Any:
            try:
                reward = await timed(solve(task, cast(Chat, _Apart(chat))), self.hold)
            except BaseException as failure:
                self.failure = failure
                raise
            self.returned = True
            return reward

        env.solve = watched  # type: ignore[method-assign]
        return env


class _Apart:
    """A `Chat` whose `complete` runs in a task of its own: its work is not the agent's."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chat, name)

    async def complete(self, *args: Any, **options: Any) -> dict[str, Any]:
        return await asyncio.ensure_future(self._chat.complete(*args, **options))
