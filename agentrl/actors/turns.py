"""`Episode`: the turns of one episode, its tokens, its reward and its budgets.

    begin -> [generate -> parse -> step -> observe]* -> finished        or resume -> ...

Between two turns it can be saved (`snapshot`), if its Env can; another attempt at it then begins
with `resume` in place of `begin`, and samples no turn again.
"""

import msgspec

from agentrl.actors.boundary import sendable_text
from agentrl.actors.limits import Budget, Limits, prompt_too_long
from agentrl.actors.player import Attempt
from agentrl.actors.report import PlayedEpisode, vote_of
from agentrl.actors.sampling import sample_turn
from agentrl.actors.snapshots import EpisodeSnapshot
from agentrl.actors.writing import Writers, num_chars
from agentrl.bounds import metric_defect, reward_defect
from agentrl.columns import EXCLUDED
from agentrl.envs.env import Env, late_reward
from agentrl.envs.messages import AssistantTurn, Step
from agentrl.envs.row_tools import name_of
from agentrl.errors import EngineError, EnvError, InfrastructureError, TextTooLongError
from agentrl.tokens.formats.base import ChatFormat, ToolSchema
from agentrl.tokens.transcript import Transcript
from agentrl.types import EpisodeFacts, EpisodeReport, Outcome, StopReason
from agentrl.visible import message_of

__all__ = ["MAX_ANSWER_CHARS", "Episode"]

#: Characters of an answer that `score_group` is shown.
MAX_ANSWER_CHARS = 64 * 1024


class _TruncatedError(Exception):
    """A budget ran out."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Episode:
    """The state of one episode. `final_text`: of the turn with which the task ended, if it did.
    `writers` make tokens of long texts."""

    def __init__(
        self,
        attempt: Attempt,
        chat: ChatFormat,
        limits: Limits,
        writers: Writers,
        *,
        reports_answer: bool,
    ) -> None:
        self._attempt = attempt
        self._assignment = attempt.assignment
        self._writers = writers
        self._chat = chat
        self._limits = limits
        self._transcript = Transcript(chat)
        self._budget = Budget(limits)
        counted = ("tool_calls", "tool_errors", "retractions", "resampled_turns")
        self._metrics = dict.fromkeys(counted, 0.0)
        self._reward = 0.0
        self._turn_rewards: list[float] = []
        self.reason = StopReason.ERROR
        self._reports_answer = reports_answer
        self._offers_tools = self._shows_reasoning = False
        self._last_text = self._vote = ""
        self.final_text: str | None = None
        self._env: Env | None = None

    async def begin(self, env: Env) -> None:
        """Have the prompt from `env`, a fresh one."""
        assignment = self._assignment
        messages: object = await env.reset(seed=assignment.seed, task=assignment.task.row)
        if not isinstance(messages, list):
            found = type(messages).__name__
            raise EnvError(f"{type(env).__name__}.reset returned {found}, not a list of Message")
        tools = _schemas(env)
        chars = num_chars(messages, tools)
        try:
            await self._writers.run(chars, self._transcript.open, messages, tools)
        except TextTooLongError as error:
            raise prompt_too_long(assignment, self._limits, str(error)) from error
        if len(self._transcript) > self._limits.max_prompt:
            found = f"it has {len(self._transcript)} tokens"
            raise prompt_too_long(assignment, self._limits, found)

    async def resume(self, env: Env, saved: EpisodeSnapshot) -> None:
        """Go on from where an earlier attempt was saved, with `env`, a fresh one."""
        assignment = self._assignment
        try:
            await env.restore(saved.env, seed=assignment.seed, task=assignment.task.row)
        except InfrastructureError as failure:
            # What was saved may hold what is gone for ever: the next attempt begins anew.
            raise EnvError(f"{type(env).__name__}.restore: {message_of(failure)}") from failure
        self._transcript.restore(saved.columns, saved.optional)
        self._budget.restore(saved.calls_left)
        self._reward = saved.reward
        self._turn_rewards = list(saved.turn_rewards)
        self._metrics = saved.metrics | {"resumed_turns": float(self._transcript.num_turns)}

    async def run(self, env: Env) -> None:
        """Play the turns, after `begin` or `resume`. An Env that can be saved is, after each but
        the last."""
        self._env = env
        save = self._attempt.save if env.can_be_saved else None
        self._reports_answer = self._reports_answer or env.scores_groups
        self._shows_reasoning = env.groups_show_reasoning
        if env.tools:
            self._offers_tools = True
            self._metrics.setdefault("tool_use", 0.0)
        try:
            while not await self._turn(env):
                if save is not None:
                    await save((await self._snapshot(env)).encode())
        except _TruncatedError as truncation:
            self.reason = truncation.reason

    async def _snapshot(self, env: Env) -> EpisodeSnapshot:
        state: object = await env.snapshot()
        if not isinstance(state, bytes):
            found = type(state).__name__
            raise EnvError(f"{type(env).__name__}.snapshot returned {found}, not bytes")
        return EpisodeSnapshot(
            env=state,
            columns=self._transcript.save(),
            optional=self._transcript.optional,
            reward=self._reward,
            turn_rewards=self._turn_rewards,
            metrics=dict(self._metrics),
            calls_left=self._budget.calls_left,
            played_s=self._attempt.played_s(),
        )

    async def _turn(self, env: Env) -> bool:
        """Play one turn; whether it was the last."""
        most, sampled = self._assignment.sampling.max_new_tokens, self._transcript.num_sampled
        if self._budget.tokens_left(sampled, 1) < 1:
            raise _TruncatedError(StopReason.RESPONSE_LIMIT)
        room = self._budget.room(len(self._transcript), most, sampled)
        if room < 1 or self._transcript.bytes_after(room) > self._limits.max_bytes:
            raise _TruncatedError(StopReason.CONTEXT_LIMIT)
        prompt_ids = self._transcript.prompt_ids()
        finish_reason = await self._generate(room, prompt_ids)
        index = self._transcript.num_turns - 1
        tools = {name_of(schema): schema for schema in _schemas(env)}
        output_ids = self._transcript.turn_ids()
        parsed = self._chat.parse(output_ids, index=index, tools=tools)
        turn = AssistantTurn(
            parsed.text,
            parsed.tool_calls,
            parsed.parse_error,
            finish_reason,
            index,
            parsed.reasoning,
            prompt_ids,
            output_ids,
        )
        self._last_text = turn.response if self._shows_reasoning else turn.text
        if self._offers_tools and (turn.tool_calls or turn.parse_error is not None):
            self._metrics["tool_use"] = 1.0
        if not self._budget.take_calls(len(turn.tool_calls)):
            raise _TruncatedError(StopReason.TOOL_CALL_LIMIT)
        step = await self._step(env, turn)
        if step.excluded:
            self._transcript.write(EXCLUDED, b"\1" * len(output_ids))
        if finish_reason == "length":
            raise _TruncatedError(StopReason.RESPONSE_LIMIT)
        if step.terminated or step.truncated:
            self.reason = StopReason.TERMINATED if step.terminated else StopReason.ENV_TRUNCATED
            self.final_text = turn.text if step.terminated else None
            return True
        if index + 1 >= self._limits.max_turns:
            raise _TruncatedError(StopReason.TURN_LIMIT)
        messages, limit = step.messages, self._limits.max_context
        chars = num_chars(messages)
        if not await self._writers.run(chars, self._transcript.observe, messages, limit):
            raise _TruncatedError(StopReason.CONTEXT_LIMIT)
        return False

    async def _generate(self, room: int, prompt_ids: list[int]) -> str:
        """Sample a turn of at most `room` tokens after `prompt_ids`; returns the engine's finish
        reason."""
        generation = await sample_turn(
            self._attempt.client,
            self._chat,
            self._assignment,
            prompt_ids,
            room=room,
            turn=self._transcript.num_turns,
        )
        self._transcript.sampled(generation.output_ids, generation.logprobs, generation.versions)
        for column, values in generation.columns.items():
            self._transcript.write(column, values)
        self._count(
            {
                "retractions": float(generation.num_retractions),
                "resampled_turns": float(generation.num_resamples),
            }
        )
        return generation.finish_reason

    async def _step(self, env: Env, turn: AssistantTurn) -> Step:
        step = await env.step(turn)
        if not isinstance(step, Step):
            raise EnvError(f"{type(env).__name__}.step returned {type(step).__name__}, not a Step")
        if step.rewards:
            raise EnvError(
                f"{type(env).__name__}.step returned a Step with rewards of {sorted(step.rewards)};"
                " an Env plays one role: only what a Rollout returns may have some"
            )
        # a copy is checked anew: user code may have changed the Step since it was made
        step = msgspec.structs.replace(step)
        if self._assignment.evaluation is not None:
            self._vote = vote_of(env)
        self._reward += step.reward
        self._turn_rewards.append(step.reward)
        self._count(step.metrics)
        return step

    def _count(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._metrics[name] = self._metrics.get(name, 0.0) + value

    def _early_rewards(self) -> tuple[float, ...]:
        """Of all turns, if one before the last has earned something."""
        last = self._transcript.num_turns - 1
        return tuple(self._turn_rewards) if any(self._turn_rewards[:last]) else ()

    def run_out_of_time(self) -> None:
        """The deadline has cut it: a truncation, if anything was sampled.

        Raises EngineError when it still waited for its first turn, EnvError when for `reset` or for
        the reward of its answer.
        """
        self.reason = StopReason.TIME_LIMIT
        limit = f"within {self._limits.episode_timeout_s:g} s (--episode-timeout-s)"
        if self._env is not None and self._env.is_scoring:
            raise late_reward(self._env, limit)
        if self._transcript.num_sampled > 0:
            return
        if len(self._transcript) > 0:
            raise EngineError(f"the first turn was not sampled {limit}")
        raise EnvError(f"reset (or restore) did not return {limit}")

    def finished(self, wall_s: float, metrics: dict[str, float]) -> PlayedEpisode:
        """The report of an episode that came to an end, with its trajectory. `metrics`: the
        worker's, to go with the episode's own.

        Raises EnvError when nothing was sampled or a sum over its steps is beyond its bound,
        TokenError when the tokens break an invariant.
        """
        if self._transcript.num_sampled == 0:
            raise EnvError(f"nothing was sampled before the episode ended ({self.reason})")
        if found := reward_defect(self._reward):
            raise EnvError(f"the rewards of its steps add up to {found}")
        for name, value in self._metrics.items():
            if found := metric_defect(value):
                raise EnvError(f"its metric {name} adds up to {found}")
        truncated = float(self.reason is not StopReason.TERMINATED)
        report = EpisodeReport(
            id=self._assignment.id,
            outcome=Outcome.DONE,
            stop_reason=self.reason,
            trajectories=self._transcript.metas(self._reward),
            reward=self._reward,
            metrics=self._metrics | {"truncated": truncated} | metrics,
            wall_s=wall_s,
            answer=sendable_text(self._last_text, MAX_ANSWER_CHARS) if self._reports_answer else "",
            vote=self._vote,
            facts=EpisodeFacts(turn_rewards=self._early_rewards()),
        )
        return PlayedEpisode(report, self._transcript.columns())


def _schemas(env: Env) -> list[ToolSchema]:
    """The tools that a prompt shows."""
    return [*(tool.spec.to_openai() for tool in env.tools.values()), *env.schemas]
