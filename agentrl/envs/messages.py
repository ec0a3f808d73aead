"""What passes between the framework and an Env: a sampled turn in, a `Step` out."""

import inspect
from collections.abc import Callable, Sequence

import msgspec

from agentrl.bounds import metric_defect, reward_defect
from agentrl.errors import EnvError
from agentrl.tokens.chat import Message, ToolCall

__all__ = ["AssistantTurn", "Message", "Step", "ToolCall"]


class AssistantTurn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn that the policy sampled, parsed by the framework from the sampled ids.

    `text` is the model's own text outside tool calls and reasoning; `parse_error` says, for the
    model to read, why its tool calls could not be taken (then there are none); `finish_reason` is
    the engine's (`stop` or `length`); `index` counts turns from 0. `prompt_ids` are the ids that it
    was sampled after, `output_ids` its own; both are empty where none were sampled.
    """

    text: str
    tool_calls: list[ToolCall]
    parse_error: str | None
    finish_reason: str
    index: int
    reasoning: str = ""
    prompt_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()

    @property
    def response(self) -> str:
        """Reasoning and text as one. A thought with no text behind it may have been left open, and
        is not closed."""
        if not self.reasoning:
            return self.text
        return f"<think>\n{self.reasoning}" + (f"\n</think>\n\n{self.text}" if self.text else "")


class Step(msgspec.Struct, kw_only=True):
    """An Env's answer to a turn.

    `messages` are what the model reads next; the assistant role is refused, for only the policy
    writes that. `reward` and each of `metrics` add up over the steps of an episode; what converts
    to a float, such as a numpy scalar, is converted, and the names of metrics to str. `terminated`:
    the task ended; `truncated`: the Env's own budget ended it. `excluded`: the turn stays out of
    the loss (of a `Rollout`: all turns), and the episode keeps its reward. `rewards`, of a
    `Rollout` alone: what each role earned, or each name of a conversation (`agentrl.roles`), where
    that is not `reward`. Raises `EnvError` on an assistant message and on a reward or metric that
    is no number within its bound (`agentrl.bounds`).
    """

    messages: list[Message] = []
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    metrics: dict[str, float] = {}
    excluded: bool = False
    rewards: dict[str, float] = {}

    def __post_init__(self) -> None:
        self.messages = list(self.messages)
        for message in self.messages:
            if message.role == "assistant":
                raise EnvError("a Step holds an assistant message; only the policy writes those")
        self.reward = _number("reward", self.reward, reward_defect)
        self.rewards = {
            str(k): _number(f"rewards[{k!r}]", value, reward_defect)
            for k, value in self.rewards.items()
        }
        self.metrics = {
            str(k): _number(str(k), value, metric_defect) for k, value in self.metrics.items()
        }

    @property
    def done(self) -> bool:
        """No turn follows."""
        return self.terminated or self.truncated


def _number(name: str, value: object, defect: Callable[[float], str | None]) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        found = f"{value!r:.100} ({type(value).__name__})"
        advice = "; was it awaited?" if inspect.isawaitable(value) else ""
        if value is None and name == "reward":
            advice = ": what score returns, on every path"
        raise EnvError(f"a Step has {name} = {found}; it must be a number{advice}") from error
    if refusal := defect(number):
        raise EnvError(f"a Step has {name} = {refusal}")
    return number
