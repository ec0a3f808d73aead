"""What a contract is tried on, and what is found: `contract`, and for agents `rollout_contract`."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentrl.envs.env import Env, EnvContext
from agentrl.envs.rehearsal import make_env
from agentrl.types import Task

__all__ = ["Announce", "Finding", "Ground", "Standing"]


class Standing(msgspec.Struct, frozen=True):
    """Where a check stands: promise `number` of `total` is tried now."""

    number: int
    total: int
    promise: str


#: Is called before each promise is tried.
Announce = Callable[[Standing], object]


class Finding(msgspec.Struct, frozen=True):
    """A promise, and how it is broken; None: it is kept. `note`: what was left out of it, why."""

    promise: str
    problem: str | None
    note: str | None = None


class Ground(msgspec.Struct, frozen=True):
    """What a contract is tried on."""

    cls: type[Env]
    args: Mapping[str, Any]
    task: Task
    context: EnvContext = EnvContext()
    seed: int = 0

    def make(self) -> Env:
        """A fresh Env."""
        env = make_env(self.cls, self.args)
        Env.bind(env, self.context)
        return env

    async def reset(self, env: Env) -> list[Any]:
        """Reset on the task, of which an Env may write to a copy."""
        return await env.reset(seed=self.seed, task=copy.deepcopy(self.task.row))
