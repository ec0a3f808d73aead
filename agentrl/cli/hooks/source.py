"""A class that gives tasks, tried by what asks it in a run: it is made, and asked for groups until
there are two tasks. Then the first is looked at as before a run. And a function that chooses among
groups that were put back, tried on two of them.
"""

from collections.abc import Iterator

import anyio
import msgspec

from agentrl.cli.hooks.trial import HookTrial
from agentrl.config.args import Args
from agentrl.envs.buffer_filter import BUFFER_FILTERS, chosen
from agentrl.envs.check.preflight import preflight
from agentrl.envs.slime_source import SlimeSource
from agentrl.envs.slime_stand_in.data_source import RolloutDataSource
from agentrl.envs.travel import arrived
from agentrl.types import Task
from agentrl.user_code import load

__all__ = ["asked", "chosen_groups"]

_NUM = 2
#: Groups that were put back.
_BACK = 2


def asked(trial: HookTrial) -> Iterator[str]:
    """Show the first tasks. Raises DataError for what it raises or gives and is none, ConfigError
    for a class that cannot be made, or a task that the environment of a run does not take."""
    tasks = anyio.run(_first, SlimeSource(trial.config))
    for task, note in map(arrived, tasks):
        yield f"{task.id}: {msgspec.json.encode(task.row).decode():.300}"
        if note is not None:
            yield note
    if len(tasks) < _NUM:
        yield "then it gave no more"
    preflight(trial.config)


async def _first(source: SlimeSource) -> list[Task]:
    tasks: list[Task] = []
    async for task in source.tasks():
        tasks.append(task)
        if len(tasks) == _NUM:
            break
    return tasks


def chosen_groups(trial: HookTrial) -> Iterator[str]:
    """Have it choose one of two groups, which nobody has played. Raises EnvError for an answer
    that is none."""
    place = trial.config.buffer_filter_path
    assert place is not None
    args = Args(trial.config)
    groups = RolloutDataSource(args).get_samples(_BACK)
    taken, dropped = chosen(load(BUFFER_FILTERS, place), args, groups, 1)
    yield f"{len(groups)} groups were put back, and one is asked for"
    for number in range(len(groups)):
        if number in taken:
            fate = "is played next"
        else:
            fate = "is taken out, and nobody plays it" if number in dropped else "waits"
        yield f"the {('first', 'second')[number]} group {fate}"
