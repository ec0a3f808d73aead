"""What promises are tried on: one Env with its arguments, task, seed and services."""

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.envs.check.dry_reset import make_env
from agentrl.envs.env import Env, EnvContext
from agentrl.types import Task

__all__ = ["Subject"]


class Subject(msgspec.Struct, frozen=True):
    """An Env that is checked, or played by hand."""

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
