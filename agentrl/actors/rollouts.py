"""`RolloutEpisodes`: episodes of an agent that owns its loop.

    solve, which calls its model as it likes -> close

The calls go through a `CallRecorder`, by HTTP or in this process. Where a budget has refused a
call, or time is up, the episode is done all the same: with the reward that `solve` returns, or with
none earned when it raises. And where its author says what an exception is worth (`failures`,
`policy_error`), it is done with that.
"""

import logging
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import anyio

from agentrl.actors.batches.desk import Desk, in_batch
from agentrl.actors.batches.tickets import Delivered
from agentrl.actors.bound_samples import bound
from agentrl.actors.boundary import Boundary, describe, sendable_text
from agentrl.actors.endpoint.answers import MODEL, message_of
from agentrl.actors.endpoint.calls import Segment
from agentrl.actors.endpoint.recorder import CallRecorder
from agentrl.actors.endpoint.requests import read_request
from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.limits import Limits
from agentrl.actors.player import Attempt
from agentrl.actors.report import PlayedEpisode, vote_of
from agentrl.actors.turns import MAX_ANSWER_CHARS
from agentrl.actors.writing import Writers
from agentrl.columns import EXCLUDED
from agentrl.config.args import Args
from agentrl.envs.env import Env, EnvContext, bound_env, late_reward
from agentrl.envs.generate import GenerateEnv
from agentrl.envs.messages import Step
from agentrl.envs.returned import SampledStep
from agentrl.envs.rollout import Rollout, outcome_of
from agentrl.errors import EngineError, EnvError, InfrastructureError
from agentrl.roles import rewards_of
from agentrl.tokens.chat import Message
from agentrl.tokens.formats.base import ChatFormat
from agentrl.types import EpisodeFacts, EpisodeReport, Outcome, StopReason

__all__ = ["EpisodeChat", "RolloutEpisodes"]

_LOG = logging.getLogger(__name__)


class EpisodeChat:
    """A `Chat`; see there."""

    model = MODEL

    def __init__(
        self,
        recorder: CallRecorder,
        base_url: str,
        api_key: str,
        services: Mapping[str, str],
        batched: Callable[..., Awaitable[Delivered]] | None = None,
    ) -> None:
        self._recorder = recorder
        self._batched = batched
        self.base_url = base_url
        self.api_key = api_key
        self.services = services
        self.seed = recorder.assignment.seed
        self.episode = recorder.assignment.id
        self.mint = recorder.assignment.mint
        self.sampling = recorder.assignment.sampling

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """See `Chat`."""
        asked = {"messages": messages, "tools": tools, **options}
        request = read_request(asked, self._recorder.assignment.sampling)
        return message_of(await self._recorder.answer(request))

    async def prompt(self, messages: list[Message], tools: list[Mapping[str, Any]]) -> str:
        """See `PromptChat`."""
        return await self._recorder.first_prompt(messages, tools)

    def text(self, ids: list[int]) -> str:
        """See `PromptChat`."""
        return self._recorder.chat.vocab.decode(ids)

    async def in_batch(
        self, args: Args, sample: Any, worth: Callable[[Args, Any], Awaitable[Any]]
    ) -> tuple[list[Any], dict[str, float]]:
        """See `BatchChat`."""
        assert self._batched is not None
        played = await self._batched(self._recorder, args, sample, worth)
        self._recorder.adopt(played.calls)
        return played.samples, played.metrics


class RolloutEpisodes:
    """A `Strategy`: one kind of `Rollout` in one chat format, over `endpoint`. Nothing is saved on
    the way: nobody but the agent knows where it stands. `context` and `reports_answers`: as in
    `EnvEpisodes`; `desk`: where episodes wait for a function that plays many at once."""

    def __init__(
        self,
        make_env: Callable[[], Env],
        chat: ChatFormat,
        limits: Limits,
        endpoint: Endpoint,
        context: EnvContext = EnvContext(),  # noqa: B008 - frozen
        *,
        reports_answers: bool = False,
        desk: Desk | None = None,
    ) -> None:
        self.reports_answers = reports_answers
        self._desk = desk
        self._make_env, self._context = make_env, context
        self._chat = chat
        self._limits = limits
        self._endpoint = endpoint
        self._writers = Writers()

    async def play(self, attempt: Attempt, boundary: Boundary) -> PlayedEpisode:
        """See `Strategy`."""
        is_evaluation = attempt.assignment.evaluation is not None
        env = cast(Rollout, bound_env(self._make_env, self._context, is_evaluation=is_evaluation))
        recorder = CallRecorder(
            attempt.assignment,
            self._chat,
            self._limits.of(attempt.assignment),
            attempt.client,
            writers=self._writers,
            writes_prompts=env.writes_prompts,
        )
        token = self._endpoint.open(recorder)
        try:
            batched = None if self._desk is None else partial(in_batch, self._desk, attempt.client)
            url = await self._endpoint.url()
            chat = EpisodeChat(recorder, url, token, env.services, batched)
            step, reason = await self._solve(env, recorder, chat, boundary)
            if env.policy_failures:
                step.metrics = {"policy_error": 0.0} | step.metrics
        finally:
            self._endpoint.close(token)
            await boundary.close(env, attempt.whose)
        vote = vote_of(env) if is_evaluation else ""
        answers = self.reports_answers or env.scores_groups
        report = _report(recorder, step, reason, vote, answers, attempt.played_s())
        _require_role_level(env, report.report)
        return report

    async def _solve(
        self, env: Rollout, recorder: CallRecorder, chat: EpisodeChat, boundary: Boundary
    ) -> tuple[Step, StopReason]:
        returned: object = None
        failure: BaseException | None = None
        with anyio.move_on_after(self._limits.episode_timeout_s) as deadline:
            recorder.time = deadline
            async with anyio.create_task_group() as group:
                recorder.on_failure = group.cancel_scope.cancel
                group.start_soon(_close_when_cancelled, recorder)
                try:
                    returned = await env.solve(recorder.assignment.task.row, chat)
                except BaseException as error:
                    await boundary.take(error)
                    failure = error
                group.cancel_scope.cancel()
        if recorder.failure is not None:
            raise recorder.failure
        if deadline.cancelled_caught:
            return self._out_of_time(env, recorder), StopReason.TIME_LIMIT
        if failure is None:
            step = outcome_of(returned, type(env).solve.__qualname__)
            ended = _ended(step, recorder)
            # what waits in a thread comes back when its time is up, with a reward all the same
            late = StopReason.TIME_LIMIT if deadline.cancel_called else None
            return step, recorder.refused or late or ended
        return self._failed(env, recorder, failure)

    def _failed(
        self, env: Rollout, recorder: CallRecorder, failure: BaseException
    ) -> tuple[Step, StopReason]:
        """What `solve` is worth that has raised. Raises `failure` where that is no policy's."""
        reward = env.policy_failures.reward(failure) if recorder.num_calls else None
        if isinstance(failure, InfrastructureError) or (
            reward is None and recorder.refused is None
        ):
            raise failure
        reason = recorder.refused or StopReason.POLICY_ERROR
        _LOG.info("episode %s: %s; %s", recorder.assignment.id, reason, describe(failure))
        if reward is None:
            return Step(), reason
        return Step(reward=reward, metrics={"policy_error": 1.0}), reason

    def _out_of_time(self, env: Rollout, recorder: CallRecorder) -> Step:
        """As for an Env: a truncation, if anything was sampled.

        Raises EnvError for what the policy has no part in: a hook, or an agent that has not asked
        its model for more than half of the time. Less may be a tool between two turns.
        """
        limit = f"within {self._limits.episode_timeout_s:g} s (--episode-timeout-s)"
        if env.is_scoring:
            raise late_reward(env, limit)
        if env.hook_under_way:
            raise EnvError(f"{env.hook_under_way} did not return {limit}")
        is_quiet = recorder.quiet_s > self._limits.episode_timeout_s / 2
        if recorder.num_calls and is_quiet and recorder.refused is None:
            who = env.who if isinstance(env, GenerateEnv) else type(env).solve.__qualname__
            raise EnvError(
                f"{who} did not return {limit}, and asked its model nothing in the last "
                f"{recorder.quiet_s:.0f} s of it; give what it waits for a limit of its own"
            )
        if recorder.num_calls:
            return Step()
        if recorder.num_asked:
            raise EngineError(f"the first call was not answered {limit}")
        raise EnvError(f"solve made no call {limit}")


async def _close_when_cancelled(recorder: CallRecorder) -> None:
    """A `solve` that waits in a thread, or in another process, for an answer, would wait on."""
    try:
        await anyio.sleep_forever()
    finally:
        recorder.close()


def _ended(step: Step, recorder: CallRecorder) -> StopReason:
    """How an episode ended that was played to the end."""
    if isinstance(step, SampledStep) and step.failed:
        return StopReason.POLICY_ERROR
    if not step.truncated:
        return StopReason.TERMINATED
    is_cut = bool(recorder.calls) and recorder.calls[-1].generation.finish_reason == "length"
    cut_by_engine = isinstance(step, SampledStep) and is_cut
    return StopReason.RESPONSE_LIMIT if cut_by_engine else StopReason.ENV_TRUNCATED


def _segments(recorder: CallRecorder, step: Step) -> list[Segment]:
    """What was recorded; where a function has said what is trained, that."""
    if not isinstance(step, SampledStep):
        return recorder.segments()
    limits = recorder.limits
    return bound(
        recorder.calls,
        recorder.chat.vocab,
        step.samples,
        max_tokens=limits.max_context,
        max_bytes=limits.max_bytes,
    )


def _report(
    recorder: CallRecorder, step: Step, reason: StopReason, vote: str, answers: bool, wall_s: float
) -> PlayedEpisode:
    """Raises EnvError when nothing was sampled, TokenError when tokens break an invariant."""
    if recorder.num_calls == 0:
        asks = "; a function samples by /generate, at the address in its args"
        raise EnvError(
            f"the agent made no call that was answered ({reason}); there is no turn"
            f"{asks if isinstance(step, SampledStep) else ''}"
        )
    segments = _segments(recorder, step)
    for one in segments if step.excluded else ():
        one.stream.write(EXCLUDED, b"\1" * len(one.stream))
    columns: list[array[Any]] = [column for one in segments for column in one.stream.columns()]
    names = dict.fromkeys(one.role for one in segments)
    shared = dict.fromkeys(names, step.reward)
    sampled = step.samples if isinstance(step, SampledStep) else ()
    also = {*recorder.roles, *(each.role for each in sampled)}
    rewards = rewards_of(names, step.rewards, also) if step.rewards else shared
    truncated = float(reason is not StopReason.TERMINATED)
    metrics = recorder.metrics | {"segments": float(len(segments)), "truncated": truncated}
    report = EpisodeReport(
        id=recorder.assignment.id,
        outcome=Outcome.DONE,
        stop_reason=reason,
        trajectories=[
            one.stream.meta(rewards[one.role], segment=number, role=one.role)
            for number, one in enumerate(segments)
        ],
        reward=step.reward,
        metrics=metrics | step.metrics,
        wall_s=wall_s,
        answer=sendable_text(recorder.last_text, MAX_ANSWER_CHARS) if answers else "",
        vote=vote,
        facts=EpisodeFacts(env_reward=None if rewards == shared else step.reward),
    )
    return PlayedEpisode(report, columns)


def _require_role_level(env: Rollout, report: EpisodeReport) -> None:
    """Raise EnvError for roles with rewards of their own that the run would not train."""
    flags = env.run_flags
    if report.facts.env_reward is None or env.is_evaluation or flags is None:
        return
    if flags.reward_level != "role":
        told = {meta.role: meta.reward for meta in report.trajectories}
        raise EnvError(
            f"{type(env).solve.__qualname__} gave its roles the rewards {told} and the episode "
            f"{report.reward:g}, which alone would be trained: give --reward-level role, which "
            "compares each role with itself, or leave rewards out"
        )
