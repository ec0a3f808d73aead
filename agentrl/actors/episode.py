"""`EpisodePlayer`: one episode from assignment to report.

    reset -> [generate -> parse -> step -> observe]* -> close        close always runs

The framework owns the budgets (turns, tool calls, context, time) and the tokens; the Env sees text
alone. How it ended is always said: an exception of user code is the outcome `env_error`, one of the
engines `engine_error`; neither is ever a zero reward. A budget that runs out is a truncation: the
episode is `done`, with its StopReason, and keeps the reward it has earned. Time that runs out
before the first token is none: in `reset` that is `env_error`, later `engine_error`. A reward that
its text does not explain is an `env_error` too, where the Env says that it must (`rescore.py`).
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import anyio
import msgspec

from agentrl.actors.boundary import Boundary, describe
from agentrl.actors.limits import Budget, Limits
from agentrl.actors.report import PlayedEpisode, failed_episode, require_sendable
from agentrl.actors.rescore import RewardAudit
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Step
from agentrl.errors import EngineError, EnvError, InfrastructureError
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.stream import TokenStream
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    Outcome,
    SamplingParams,
    StopReason,
    TurnClient,
)

__all__ = ["CLOSE_TIMEOUT_S", "EnvFactory", "EpisodePlayer"]

_LOG = logging.getLogger(__name__)

#: Seconds that an Env's `close` may take, shielded from every cancellation.
CLOSE_TIMEOUT_S = 10.0


class EnvFactory(Protocol):
    """Makes the Env of one episode, its services set."""

    def __call__(self) -> Env: ...


#: Different errors that are logged with their traceback.
_MAX_SEEN = 100


class _TruncatedError(Exception):
    """A budget ran out."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


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
        self._seen: set[str] = set()
        self._audit = RewardAudit(make_env, self._close)

    async def play(self, assignment: EpisodeAssignment, client: TurnClient) -> PlayedEpisode:
        """Play to the end; raises nothing but a cancellation of the task that runs it."""
        started = self._now()
        boundary = Boundary()
        episode = _Episode(assignment, self._chat, self._limits, client)
        row = None
        try:
            with anyio.move_on_after(self._limits.episode_timeout_s) as deadline:
                row = await self._play(episode, assignment, boundary)
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
            lost = isinstance(failure, InfrastructureError)
            outcome = Outcome.ENGINE_ERROR if lost else Outcome.ENV_ERROR
            error = describe(failure)
            self._log(assignment.id, outcome, error, failure)
        return failed_episode(assignment, outcome, error, self._now() - started)

    def _log(self, id_: EpisodeId, outcome: Outcome, error: str, failure: BaseException) -> None:
        """Log a failure, with its traceback the first time that this error is seen."""
        first = error not in self._seen and len(self._seen) < _MAX_SEEN
        self._seen.add(error)
        _LOG.warning("episode %s: %s: %s", id_, outcome, error, exc_info=failure if first else None)

    async def _play(
        self, episode: "_Episode", assignment: EpisodeAssignment, boundary: Boundary
    ) -> dict[str, Any] | None:
        """Returns the task's row as it was, when the reward is to be checked."""
        env = self._make_env()
        try:
            row = self._audit.keep_task(env, assignment)
            await episode.run(env)
        finally:
            await self._close(env, assignment.id, boundary)
        return row

    async def _close(self, env: Env, id_: EpisodeId, boundary: Boundary) -> None:
        """Close `env`. What goes wrong is logged: the episode's result stands."""
        with anyio.move_on_after(self._close_timeout_s, shield=True) as deadline:
            try:
                await env.close()
            except BaseException as failure:
                await boundary.take(failure)
                _LOG.warning("episode %s: its Env's close raised %s", id_, describe(failure))
        if deadline.cancelled_caught:
            cut = self._close_timeout_s
            _LOG.warning("episode %s: its Env's close was cut after %g s", id_, cut)


class _Episode:
    """The state of one episode. `final_text`: of the turn with which the task ended, if it did."""

    def __init__(
        self,
        assignment: EpisodeAssignment,
        chat: ChatFormat,
        limits: Limits,
        client: TurnClient,
    ) -> None:
        self._assignment = assignment
        self._chat = chat
        self._limits = limits
        self._client = client
        self._stream = TokenStream(chat.vocab, opener=chat.assistant_opener)
        self._budget = Budget(limits)
        self._metrics = {"tool_calls": 0.0, "tool_errors": 0.0, "retractions": 0.0}
        self._reward = 0.0
        self.reason = StopReason.ERROR
        self.final_text: str | None = None

    async def run(self, env: Env) -> None:
        assignment = self._assignment
        messages: object = await env.reset(seed=assignment.seed, task=assignment.task.row)
        if not isinstance(messages, list):
            found = type(messages).__name__
            raise EnvError(f"{type(env).__name__}.reset returned {found}, not a list of Message")
        if env.tools:
            self._metrics["tool_use"] = 0.0
        tools = [tool.spec.to_openai() for tool in env.tools.values()]
        self._stream.extend(self._chat.open_prompt(messages, tools))
        if len(self._stream) > self._limits.max_prompt:
            raise EnvError(
                f"the prompt of task {assignment.task.id} has {len(self._stream)} tokens; at most "
                f"{self._limits.max_prompt} fit (--rollout-max-prompt-len)"
            )
        try:
            while not await self._turn(env):
                pass
        except _TruncatedError as truncation:
            self.reason = truncation.reason

    async def _turn(self, env: Env) -> bool:
        """Play one turn; whether it was the last."""
        room = self._budget.room(len(self._stream), self._assignment.sampling.max_new_tokens)
        if room < 1:
            raise _TruncatedError(StopReason.CONTEXT_LIMIT)
        finish_reason = await self._generate(room)
        sampled = self._stream.turn_ids()
        index = self._stream.num_turns - 1
        parsed = self._chat.parse(sampled, index=index)
        turn = AssistantTurn(
            parsed.text,
            parsed.tool_calls,
            parsed.parse_error,
            finish_reason,
            index,
            parsed.reasoning,
        )
        if "tool_use" in self._metrics and (turn.tool_calls or turn.parse_error is not None):
            self._metrics["tool_use"] = 1.0
        if not self._budget.take_calls(len(turn.tool_calls)):
            raise _TruncatedError(StopReason.TOOL_CALL_LIMIT)
        step = await self._step(env, turn)
        if finish_reason == "length":
            raise _TruncatedError(StopReason.RESPONSE_LIMIT)
        if step.terminated or step.truncated:
            self.reason = StopReason.TERMINATED if step.terminated else StopReason.ENV_TRUNCATED
            self.final_text = turn.text if step.terminated else None
            return True
        if index + 1 >= self._limits.max_turns:
            raise _TruncatedError(StopReason.TURN_LIMIT)
        self._stream.extend(self._chat.observe(step.messages, sampled))
        return False

    async def _generate(self, room: int) -> str:
        """Sample one turn of at most `room` tokens; returns the engine's finish reason."""
        sampling = self._assignment.sampling
        generation = await self._client.generate(
            self._stream.prompt_ids(),
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_new_tokens=room,
                stop_token_ids=(*self._chat.stop_ids, *sampling.stop_token_ids),
            ),
            routing_key=str(self._assignment.id),
            priority=self._assignment.mint,
        )
        if generation.finish_reason == "abort":
            raise EngineError(f"turn {self._stream.num_turns} was aborted on its engine")
        if not generation.output_ids:
            raise EngineError(f"turn {self._stream.num_turns} came back without a token")
        self._stream.sampled(generation.output_ids, generation.logprobs, generation.versions)
        self._count({"retractions": float(generation.num_retractions)})
        return generation.finish_reason

    async def _step(self, env: Env, turn: AssistantTurn) -> Step:
        step = await env.step(turn)
        if not isinstance(step, Step):
            raise EnvError(f"{type(env).__name__}.step returned {type(step).__name__}, not a Step")
        # a copy is checked anew: user code may have changed the Step since it was made
        step = msgspec.structs.replace(step)
        self._reward += step.reward
        self._count(step.metrics)
        return step

    def _count(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._metrics[name] = self._metrics.get(name, 0.0) + value

    def run_out_of_time(self) -> None:
        """The deadline has cut it: a truncation, if anything was sampled.

        Raises EngineError when it still waited for its first turn, EnvError when for `reset`.
        """
        self.reason = StopReason.TIME_LIMIT
        if self._stream.num_sampled > 0:
            return
        limit = f"within {self._limits.episode_timeout_s:g} s (--episode-timeout-s)"
        if len(self._stream) > 0:
            raise EngineError(f"the first turn was not sampled {limit}")
        raise EnvError(f"reset did not return {limit}")

    def finished(self, wall_s: float, metrics: dict[str, float]) -> PlayedEpisode:
        """The report of an episode that came to an end, with its trajectory. `metrics`: the
        worker's, to go with the episode's own.

        Raises EnvError when nothing was sampled or the reward has overflown, TokenError when the
        tokens break an invariant.
        """
        if self._stream.num_sampled == 0:
            raise EnvError(f"nothing was sampled before the episode ended ({self.reason})")
        if not math.isfinite(self._reward):
            raise EnvError(f"the rewards of its steps add up to {self._reward}")
        truncated = float(self.reason is not StopReason.TERMINATED)
        report = EpisodeReport(
            id=self._assignment.id,
            outcome=Outcome.DONE,
            stop_reason=self.reason,
            trajectories=[self._stream.meta(self._reward)],
            reward=self._reward,
            metrics=self._metrics | {"truncated": truncated} | metrics,
            wall_s=wall_s,
        )
        return PlayedEpisode(report, self._stream.columns())
