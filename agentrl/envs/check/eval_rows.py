"""The rows of an evaluation set, before anything starts: what a run would only show later, as
episodes that failed.

Refused: a set whose first row cannot be played. Of the environments for rows of a prompt and a
label each row is looked at, and those that cannot be played are counted and told; where a function
plays episodes, those of which no sample can be made. Of another Env
the first row is reset once, unless it needs a service or owns its loop.
"""

import time
from collections.abc import Sequence

from agentrl.config.conditions import ROW_ENVS
from agentrl.config.eval_sets import EvalSet
from agentrl.envs.check.bad_rows import BadRows
from agentrl.envs.check.dry_reset import context_of, dry_reset, make_env
from agentrl.envs.env import Env
from agentrl.envs.generate import GenerateEnv
from agentrl.envs.registry import load_env
from agentrl.envs.rollout import Rollout
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.envs.sources import RowSource
from agentrl.errors import ConfigError, EnvError
from agentrl.types import Task

__all__ = ["check_eval_rows"]

#: Seconds after which no further row of a set is looked at.
LIMIT_S = 10.0


def check_eval_rows(one: EvalSet, tasks: Sequence[Task]) -> list[str]:
    """Notes on the rows of a set, `tasks`. Raises ConfigError where the first cannot be played."""
    cls = load_env(one.env)
    if one.env not in ROW_ENVS:
        return _reset_first(one, cls, tasks[0])
    env = make_env(cls, one.config.env_args)
    assert isinstance(env, SingleTurnEnv | GenerateEnv)
    Env.bind(env, context_of(one.config, is_evaluation=True))
    num, found = _look(env, tasks)
    if not found:
        return []
    rows, bad = RowSource(str(one.path)), BadRows()
    if 0 in found:
        raise ConfigError(f"its first row, {rows.where(0)}, cannot be played: {found[0]}")
    for index, why in found.items():
        bad.add(rows.where(index), why)
    of = f"{bad.num} of its {'' if num == len(tasks) else 'first '}{num} rows"
    return [f"{of} cannot be played, and count as failed: {bad}"]


def _look(env: SingleTurnEnv | GenerateEnv, tasks: Sequence[Task]) -> tuple[int, dict[int, str]]:
    """How many rows were looked at, and by place why some of them cannot be played."""
    num, found, until = 0, dict[int, str](), time.monotonic() + LIMIT_S
    for task in tasks:
        try:
            env.take(task.row)
        except EnvError as error:
            found[num] = str(error)
        num += 1
        if time.monotonic() > until:
            break
    return num, found


def _reset_first(one: EvalSet, cls: type[Env], task: Task) -> list[str]:
    config = one.config
    if issubclass(cls, Rollout) or cls.service_specs(config.env_args):
        return []
    env = make_env(cls, config.env_args)
    Env.bind(env, context_of(config, is_evaluation=True))
    place = RowSource(str(one.path)).where(0)
    note = dry_reset(env, task, seed=config.rollout_seed, place=place)
    return [] if note is None else [note]
