"""`single-turn`: one prompt, one answer, compared with a label. For rows without tools."""

import inspect
from typing import Any

import msgspec

from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step, ToolCall
from agentrl.envs.named import Reward, load_reward
from agentrl.envs.registry import register
from agentrl.envs.reward_keys import chosen, parts
from agentrl.envs.rewards.exact import exact
from agentrl.envs.row_tools import name_of, tools_of
from agentrl.envs.rows.keys import find, holds, without_nulls
from agentrl.errors import EnvError
from agentrl.shipped import REWARDS as SHIPPED

__all__ = ["SingleTurnEnv"]

_NO_LABEL = ", or score answers without labels by a function of yours (--custom-rm-path)"


@register("single-turn")
class SingleTurnEnv(Env):
    """Reward 1 when the model's text equals the label, outer white space aside, else 0.

    `input_key` names the prompt in a row: a string, or a list of messages with `role` and
    `content`. `label_key` names the label (by default `label`); numbers are compared as JSON writes
    them. Either may lead into a value: `reward_model.ground_truth`. `reward` names another reward
    (`load_reward`); one of the user's may do without labels, and is then given an empty one where a
    row has none, unless `label_key` says that each has one. It may return a dict: `reward_key`
    names what is trained of it, `eval_reward_key` what is the score of an evaluation; its numbers
    are counted as metrics `reward.KEY`.

    The prompt shows the `tools` of a row. Nothing runs them: a call of one ends the episode, and a
    reward of the user's reads it behind the text, a line of JSON for each call.
    """

    reward_reads_text_only: bool | None = True

    def __init__(
        self,
        *,
        input_key: str = "input",
        label_key: str | None = None,
        reward: str | None = None,
        reward_key: str | None = None,
        eval_reward_key: str | None = None,
    ) -> None:
        super().__init__()
        self._reward_key = reward_key
        self._eval_reward_key = eval_reward_key or reward_key
        self._parts: dict[str, float] = {}
        self._input_key = input_key
        self._label_key = label_key or "label"
        self._wants_label = label_key is not None or reward in (None, *SHIPPED.places)
        self._label = ""
        self._task: dict[str, Any] = {}
        self._reward: Reward = exact if reward is None else load_reward(reward)
        if reward is not None:
            # Nobody has said that it gives the same text the same: a judge may not.
            self.reward_reads_text_only = None

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        del seed
        self._task = task
        self._label = self._label_of(task)
        self.schemas = [tool for tool in tools_of(task) if name_of(tool) not in self.tools]
        prompt = _value(task, self._input_key, "--input-key")
        if isinstance(prompt, str):
            return [Message.user(prompt)]
        try:
            return msgspec.convert(without_nulls(prompt), list[Message])
        except msgspec.ValidationError as error:
            raise EnvError(f"{self._input_key!r} is no list of messages: {error}") from error

    async def step(self, turn: AssistantTurn) -> Step:
        shown = {name_of(tool) for tool in self.schemas}
        if not any(call.name in shown for call in turn.tool_calls):
            step = await super().step(turn)
            return self._counted(step) if step.terminated else step
        said = [turn.text] if turn.text else []
        if not self.reward_reads_text_only:
            said += [_written(call) for call in turn.tool_calls]
        return self._counted(Step(reward=await self.score("\n".join(said)), terminated=True))

    async def score(self, text: str) -> float:
        found: Any = self._reward(text, self._label, self._task)
        found = await found if inspect.isawaitable(found) else found
        self._parts = parts(found)
        key = self._eval_reward_key if self.is_evaluation else self._reward_key
        reward: float = chosen(found, key)
        return reward

    def _counted(self, step: Step) -> Step:
        return msgspec.structs.replace(step, metrics=step.metrics | self._parts)

    def _label_of(self, task: dict[str, Any]) -> str:
        is_there = holds(task, self._label_key) and find(task, self._label_key) is not None
        if not self._wants_label and not is_there:
            return ""
        label = _value(task, self._label_key, "--label-key", _NO_LABEL)
        if label is None:  # so a column of Parquet says that it has none
            raise EnvError(f"the task has no {self._label_key!r}: it is null")
        if self._reward is exact and isinstance(label, dict):
            raise EnvError(_nested(self._label_key, label))
        return label if isinstance(label, str) else msgspec.json.encode(label).decode()


def _nested(key: str, label: dict[str, Any]) -> str:
    inner = f"; name a value within it, as in --label-key {key}.{min(label)}" if label else ""
    return (
        f"the label {key!r} has the keys {sorted(label)}, and no text of a model equals that{inner}"
    )


def _written(call: ToolCall) -> str:
    name = msgspec.json.encode(call.name).decode()
    return f'{{"name": {name}, "arguments": {call.arguments.decode()}}}'


def _value(task: dict[str, Any], key: str, flag: str, otherwise: str = "") -> Any:
    try:
        return find(task, key)
    except KeyError:
        raise EnvError(
            f"the task has no {key!r}; its keys are {sorted(task)}; name one with {flag}{otherwise}"
        ) from None
