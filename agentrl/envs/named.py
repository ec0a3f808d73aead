"""Tools and rewards by name, as environments have names: `plugins.py` has the rules.

A tool is a function under `@tool` that needs no Env. A reward is a function of the model's final
text, the label and the row of its task: `def reward(text: str, label: str, task: dict) -> float`,
or the same as `async def`. Packages announce them under `agentrl.tools` and `agentrl.rewards`.
"""

import functools
import inspect
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

from agentrl.envs.plugins import Kind, load_named, load_place, unknown
from agentrl.errors import ConfigError
from agentrl.tools.tool import Tool

__all__ = ["REWARDS", "TOOLS", "Reward", "exact", "load_reward", "load_tool"]

#: Entry point groups under which packages announce theirs.
TOOLS, REWARDS = "agentrl.tools", "agentrl.rewards"

T = TypeVar("T")


class Reward(Protocol):
    """What a model's final text is worth: a finite number."""

    def __call__(
        self, text: str, label: str, task: dict[str, Any], /
    ) -> float | Awaitable[float]: ...


def exact(text: str, label: str, task: dict[str, Any], /) -> float:
    """1 when the text is the label, outer white space aside, else 0."""
    del task
    return float(text.strip() == label.strip())


@functools.cache
def load_tool(name: str) -> Tool[Any]:
    """The tool of a name, `pkg.module:function` or `path/to/file.py:function`; found once in a
    process. Raises ConfigError when there is none, or when it needs the Env that it is a method
    of."""
    found = _load(_TOOLS, name)
    if found.parameters.is_method:
        raise ConfigError(
            f"tool {name!r} takes `self`: it works as a method of its Env alone; ask for a function"
        )
    return found


@functools.cache
def load_reward(name: str) -> Reward:
    """The reward of a name, `pkg.module:function` (or dotted) or `path/to/file.py:function`; found
    once in a process. Raises ConfigError when there is none."""
    if ":" not in name and "/" not in name and "." in name:
        name = ":".join(name.rsplit(".", 1))
    return _load(_REWARDS, name)


def _load(kind: Kind[T], name: str) -> T:
    if ":" in name:
        return load_place(kind, name)
    offered = load_named(kind, name)
    if offered is None:
        raise unknown(kind, name)
    return offered[1]


def _tool_of(value: object) -> Tool[Any] | None:
    return value if isinstance(value, Tool) else None


def _reward_of(value: object) -> Reward | None:
    if not callable(value) or isinstance(value, Tool | type):
        return None
    try:
        inspect.signature(value).bind("", "", {})
    except (TypeError, ValueError):
        return None
    reward: Reward = value
    return reward


_TOOLS: Kind[Tool[Any]] = Kind(
    group=TOOLS,
    noun="tool",
    must_be="a tool: write `@tool` above the function",
    place="pkg.module:function",
    take=_tool_of,
    builtin={
        "calculator": "agentrl.tools.calculator:calculator",
        "fetch": "agentrl.tools.fetch:fetch",
    },
)
_REWARDS: Kind[Reward] = Kind(
    group=REWARDS,
    noun="reward",
    must_be="a function that can be called as `reward(text, label, task)`",
    place="pkg.module:function",
    take=_reward_of,
    builtin={"exact": "agentrl.envs.named:exact"},
)
