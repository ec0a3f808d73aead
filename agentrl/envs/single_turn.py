"""`single-turn`: one prompt, one answer, compared with a label. For JSONL tasks without tools."""

import inspect
from typing import Any

import msgspec

from agentrl.envs.env import Env
from agentrl.envs.messages import Message
from agentrl.envs.named import Reward, load_reward
from agentrl.envs.registry import register
from agentrl.envs.rewards.exact import exact
from agentrl.errors import EnvError

__all__ = ["SingleTurnEnv"]


@register("single-turn")
class SingleTurnEnv(Env):
    """Reward 1 when the model's text equals the label, outer white space aside, else 0.

    `input_key` names the prompt in a row: a string, or a list of messages with `role` and
    `content`. `label_key` names the label; numbers are compared as JSON writes them. `reward` names
    another reward (`load_reward`).
    """

    reward_reads_text_only: bool | None = True

    def __init__(
        self, *, input_key: str = "input", label_key: str = "label", reward: str | None = None
    ) -> None:
        super().__init__()
        self._input_key = input_key
        self._label_key = label_key
        self._label = ""
        self._task: dict[str, Any] = {}
        self._reward: Reward = exact if reward is None else load_reward(reward)
        if reward is not None:
            # Nobody has said that it gives the same text the same: a judge may not.
            self.reward_reads_text_only = None

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        del seed
        self._task = task
        label = self._value(task, self._label_key, "--label-key")
        self._label = label if isinstance(label, str) else msgspec.json.encode(label).decode()
        prompt = self._value(task, self._input_key, "--input-key")
        if isinstance(prompt, str):
            return [Message.user(prompt)]
        try:
            return msgspec.convert(prompt, list[Message])
        except msgspec.ValidationError as error:
            raise EnvError(f"{self._input_key!r} is no list of messages: {error}") from error

    async def score(self, text: str) -> float:
        reward = self._reward(text, self._label, self._task)
        return await reward if inspect.isawaitable(reward) else reward

    @staticmethod
    def _value(task: dict[str, Any], key: str, flag: str) -> Any:
        if key not in task:
            raise EnvError(
                f"the task has no {key!r}; its keys are {sorted(task)}; name one with {flag}"
            )
        return task[key]
