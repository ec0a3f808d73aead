"""A class that gives tasks, tried by what asks it in a run: it is made, and asked for groups until
there are two tasks. Then the first is looked at as before a run."""

from collections.abc import Iterator

import anyio
import msgspec

from agentrl.cli.hooks.trial import HookTrial
from agentrl.envs.check.preflight import preflight
from agentrl.envs.slime_source import SlimeSource
from agentrl.envs.travel import arrived
from agentrl.types import Task

__all__ = ["asked"]

_NUM = 2


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
