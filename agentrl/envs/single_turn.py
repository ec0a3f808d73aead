"""`single-turn`: one prompt, one answer, compared with a label. For JSONL tasks without tools."""

from typing import Any

import msgspec

from agentrl.envs.env import Env
from agentrl.envs.messages import Message
from agentrl.envs.registry import register
from agentrl.errors import EnvError

__all__ = ["SingleTurnEnv"]


@register("single-turn")
class SingleTurnEnv(Env):
    """Reward 1 when the model's text equals the label, outer white space aside, else 0.

    `input_key` names the prompt in a row: a string, or a list of messages with `role` and
    `content`. `label_key` names the label; numbers are compared as JSON writes them.
    """

    reward_reads_text_only = True

    def __init__(self, *, input_key: str = "input", label_key: str = "label") -> None:
        super().__init__()
        self._input_key = input_key
        self._label_key = label_key
        self._label = ""

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        del seed
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
        return float(text.strip() == self._label.strip())

    @staticmethod
    def _value(task: dict[str, Any], key: str, flag: str) -> Any:
        if key not in task:
            raise EnvError(
                f"the task has no {key!r}; its keys are {sorted(task)}; name one with {flag}"
            )
        return task[key]
