"""The rows of an evaluation set, before anything starts: what a run would only show later, as
episodes that failed.

Refused: a set whose first row cannot be played. Of the environments for rows of a prompt and a
label each row is looked at, and those that cannot be played are counted and told. Of another Env
the first row is reset once, unless it needs a service or owns its loop.
"""

import time
from collections.abc import Sequence

import anyio

from agentrl.config.conditions import GENERATE, ROW_ENVS
from agentrl.config.eval_sets import EvalSet
from agentrl.config.run import RunConfig
from agentrl.envs.check.bad_rows import BadRows
from agentrl.envs.check.dry_reset import dry_reset, make_env
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.registry import load_env
from agentrl.envs.rollout import Rollout
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.errors import ConfigError, EnvError
from agentrl.types import Task

__all__ = ["check_eval_rows"]

#: Seconds after which no further row of a set is looked at.
LIMIT_S = 10.0


def check_eval_rows(one: EvalSet, tasks: Sequence[Task]) -> list[str]:
    """Notes on the rows of a set, `tasks`. Raises ConfigError where the first cannot be played."""
    cls = load_env(one.env)
    if one.env not in ROW_ENVS:
        return _reset_first(one.config, cls, tasks[0])
    if one.env == GENERATE:  # a function reads the row, and writes its own prompt
        return []
    env = make_env(cls, one.config.env_args)
    assert isinstance(env, SingleTurnEnv)
    env.is_evaluation = True
    num, bad = anyio.run(_look, env, tasks)
    first = tasks[0].id
    if why := next((why for why, ids in bad.ids.items() if first in ids), None):
        raise ConfigError(f"its first row, {first}, cannot be played: {why}")
    if not bad.num:
        return []
    of = f"{bad.num} of its {'' if num == len(tasks) else 'first '}{num} rows"
    return [f"{of} cannot be played, and count as failed: {bad}"]


async def _look(env: SingleTurnEnv, tasks: Sequence[Task]) -> tuple[int, BadRows]:
    """How many rows were looked at, and those of them that cannot be played."""
    num, bad, until = 0, BadRows(), time.monotonic() + LIMIT_S
    for task in tasks:
        try:
            await SingleTurnEnv.reset(env, seed=0, task=task.row)
        except EnvError as error:
            bad.add(task.id, str(error))
        num += 1
        if time.monotonic() > until:
            break
    return num, bad


def _reset_first(config: RunConfig, cls: type[Env], task: Task) -> list[str]:
    if issubclass(cls, Rollout) or cls.service_specs(config.env_args):
        return []
    env = make_env(cls, config.env_args)
    Env.bind(env, EnvContext({}, config.tool_timeout_s, config.allow_unsafe_sandbox, config))
    env.is_evaluation = True
    note = dry_reset(env, task, seed=config.rollout_seed)
    return [] if note is None else [note]
