"""Tools and rewards by name, as environments have names: `user_code.py` has the rules.

A tool is a function under `@tool` that needs no Env. A reward is a function of the model's final
text, the label and the row of its task: `def reward(text: str, label: str, task: dict) -> float`,
or the same as `async def`. Slime's signatures are
taken too (`slime_rewards.py`). Packages announce theirs under `agentrl.tools` and
`agentrl.rewards`. A reward that ships and asks a model (`Facts.wants`) is named by `--rm-type`
alone.
"""

import dataclasses
import functools
import importlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

from agentrl.envs.rewards.base import facts_of
from agentrl.envs.slime_rewards import OfSample, model_of
from agentrl.errors import ConfigError
from agentrl.shipped import REWARDS as SHIPPED
from agentrl.shipped import TOOLS as SHIPPED_TOOLS
from agentrl.tools.tool import Tool
from agentrl.user_code import Kind, Signature, hook, load, load_once

__all__ = ["REWARDS", "TOOLS", "Reward", "load_reward", "load_shipped", "load_tool", "rewards"]

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


def load_reward(name: str) -> Reward:
    """The reward of a name, `pkg.module:function` (or dotted) or `path/to/file.py:function`; found
    once in a process. Raises ConfigError when there is none."""
    reward: Reward = load_once(rewards(), name)
    return reward


@functools.cache
def load_shipped(name: str) -> Callable[..., Any]:
    """The reward of `agentrl/envs/rewards/NAME.py`."""
    return cast(Callable[..., Any], getattr(importlib.import_module(SHIPPED.places[name]), name))


def _tool_of(value: object) -> Tool[Any] | None:
    return value if isinstance(value, Tool) else None


_TOOLS: Kind[Tool[Any]] = Kind(
    group=TOOLS,
    noun="tool",
    must_be="a tool",
    write="`@tool` above the function",
    take=_tool_of,
    builtin={name: f"{place}:{name}" for name, place in SHIPPED_TOOLS.places.items()},
)


@functools.cache
def rewards() -> Kind[Reward]:
    """Functions, and classes that are reward models. Of those that ship, what wants no more than a
    text, a label and a row."""
    plain = {
        name: f"{place}:{name}"
        for name, place in SHIPPED.places.items()
        if not facts_of(load_shipped(name)).wants
    }
    functions: Kind[Reward] = hook(
        "reward(text, label, task)",
        [
            Signature(("text", "label", "task")),
            Signature(("args", "sample"), lambda function: OfSample(function), is_slimes=True),
        ],
        may_await=True,
        never=(Tool,),
        group=REWARDS,
        noun="reward",
        synonyms=SHIPPED.theirs,
        builtin=plain,
        flag="--custom-rm-path",
    )
    return dataclasses.replace(
        functions,
        take=lambda value: cast(Reward, model_of(value)) or functions.take(value),
        elsewhere={
            name: f"this reward of agentrl asks a model; give it with --rm-type {name}"
            for name in SHIPPED.places.keys() - plain.keys()
        },
    )
