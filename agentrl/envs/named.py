"""Tools and rewards by name, as environments have names: `user_code.py` has the rules.

A tool is a function under `@tool` that needs no Env. A reward is a function of the model's final
text, the label and the row of its task: `def reward(text: str, label: str, task: dict) -> float`,
or the same as `async def`. Packages announce them under `agentrl.tools` and `agentrl.rewards`.
"""

import functools
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from agentrl.errors import ConfigError
from agentrl.shipped import REWARDS as SHIPPED
from agentrl.tools.tool import Tool
from agentrl.user_code import Kind, Signature, hook, load

__all__ = ["REWARDS", "TOOLS", "Reward", "load_reward", "load_tool"]

#: Entry point groups under which packages announce theirs.
TOOLS, REWARDS = "agentrl.tools", "agentrl.rewards"


Worth = float | Mapping[str, Any]


class Reward(Protocol):
    """What a model's final text is worth: a finite number, or a dict of which `--reward-key` names
    one."""

    def __call__(
        self, text: str, label: str, task: dict[str, Any], /
    ) -> Worth | Awaitable[Worth]: ...


@functools.cache
def load_tool(name: str) -> Tool[Any]:
    """The tool of a name, `pkg.module:function` or `path/to/file.py:function`; found once in a
    process. Raises ConfigError when there is none, or when it needs the Env that it is a method
    of."""
    found = load(_TOOLS, name)
    if found.parameters.is_method:
        raise ConfigError(
            f"tool {name!r} takes `self`: it works as a method of its Env alone; ask for a function"
        )
    return found


@functools.cache
def load_reward(name: str) -> Reward:
    """The reward of a name, `pkg.module:function` (or dotted) or `path/to/file.py:function`; found
    once in a process. Raises ConfigError when there is none."""
    return load(_REWARDS, name)


def _tool_of(value: object) -> Tool[Any] | None:
    return value if isinstance(value, Tool) else None


_TOOLS: Kind[Tool[Any]] = Kind(
    group=TOOLS,
    noun="tool",
    must_be="a tool",
    write="`@tool` above the function",
    take=_tool_of,
    builtin={
        "calculator": "agentrl.tools.calculator:calculator",
        "fetch": "agentrl.tools.fetch:fetch",
    },
)
_REWARDS: Kind[Reward] = hook(
    "reward(text, label, task)",
    [Signature(("text", "label", "task"))],
    may_await=True,
    never=(Tool,),
    group=REWARDS,
    noun="reward",
    builtin=SHIPPED.places,
    synonyms=SHIPPED.theirs,
    flag="--custom-rm-path",
)
