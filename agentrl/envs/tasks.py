"""Which tasks a run trains on and is evaluated with, from its flags and its Env."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import anyio
import msgspec

from agentrl.config.conditions import ROW_ENVS
from agentrl.config.eval_sets import EvalSet, eval_sets
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env
from agentrl.envs.given import GivenSource, listed
from agentrl.envs.prompt_lengths import leave_out_long_prompts
from agentrl.envs.registry import load_env
from agentrl.envs.sources import RowSource
from agentrl.errors import ConfigError
from agentrl.types import Task, TaskSource

__all__ = ["RunTasks", "open_eval_sets", "open_source", "open_tasks", "own_source"]


class RunTasks(msgspec.Struct, frozen=True):
    """What a run trains on, its evaluation sets by name, and notes on the rows for the user."""

    source: TaskSource
    eval_sets: dict[str, list[Task]]
    notes: list[str] = []


def open_tasks(config: RunConfig, env_class: type[Env]) -> RunTasks:
    """Both, as the flags and the Env say, but for rows with a prompt that is too long. Raises
    ConfigError."""
    source = open_source(config, env_class)
    notes = list(leave_out_long_prompts(config, source, env_class))
    return RunTasks(source, open_eval_sets(config, env_class), notes)


def open_source(config: RunConfig, env_class: type[Env]) -> TaskSource:
    """The training tasks: `--prompt-data`, or else the Env's own; where nothing is trained and
    there are none, those to be scored.

    Raises ConfigError when there are none.
    """
    if config.prompt_data is not None:
        return RowSource(
            config.prompt_data,
            seed=config.rollout_seed,
            shuffle=config.rollout_shuffle,
            num_epoch=None if config.num_rollout is not None else config.num_epoch or 1,
            required_keys=[config.dialogue_key] if config.dialogue_key is not None else [],
            names=_names(config),
        )
    source = own_source(config, env_class)
    if source is None and config.eval_only:
        tasks = list(chain(*open_eval_sets(config, env_class).values()))
        return GivenSource(tasks, lambda: tasks, name="eval_tasks")
    if source is None:
        raise ConfigError(f"--env {config.env} brings no tasks of its own; give it --prompt-data")
    return source


def own_source(config: RunConfig, env_class: type[Env]) -> TaskSource | None:
    """The training tasks that the Env brings, as a source. Raises ConfigError for what is none."""

    def ask() -> object:
        return env_class.train_tasks(config.env_args, seed=config.rollout_seed)

    found = ask()
    if found is None or callable(getattr(found, "tasks", None)):
        source: TaskSource | None = found  # type: ignore[assignment]
        return source
    name = f"{env_class.__qualname__}.train_tasks"
    return GivenSource(found, ask, name=name, is_repeated=config.num_rollout is not None)


def open_eval_sets(config: RunConfig, env_class: type[Env]) -> dict[str, list[Task]]:
    """Evaluation sets by name: those of `--eval-config` or `--eval-prompt-data`, or else the Env's
    own.

    Raises ConfigError when there are none, and evaluations are asked for.
    """
    if named := eval_sets(config):
        return {name: _tasks_of(one) for name, one in named.items()}
    sets = {} if config.prompt_data else _own_sets(config, env_class)
    if not sets and (config.eval_only or config.eval_interval is not None):
        raise ConfigError(_no_sets(config, env_class))
    return sets


def _tasks_of(one: EvalSet) -> list[Task]:
    if one.path is not None:
        return anyio.run(_read_all, Path(one.path), one)
    sets = _own_sets(one.config, load_env(one.env))
    if one.name not in sets:
        raise ConfigError(
            f"--eval-config: {one.name} has no `path`, and {one.env} brings no set of that name; "
            f"it brings {', '.join(sets) or 'none'}"
        )
    return sets[one.name]


def _own_sets(config: RunConfig, env_class: type[Env]) -> dict[str, list[Task]]:
    name = f"{env_class.__qualname__}.eval_tasks"
    found: object = env_class.eval_tasks(config.env_args)
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"{name} returned {found!r:.80}; return a dict of tasks by name: "
            '{"heldout": [Task(id, row), ...]}'
        )
    return {str(key): listed(tasks, f"{name}, {key}") for key, tasks in found.items()}


def _no_sets(config: RunConfig, env_class: type[Env]) -> str:
    """Why there is nothing to score on. Names no flag that may not have been given: `agentrl eval`
    evaluates without `--eval-only`, and takes other flags from a run."""
    asked = "" if config.eval_only else f"--eval-interval {config.eval_interval}: "
    name = env_class.__qualname__
    why = f"{name} brings none"
    author = next(cls for cls in env_class.__mro__ if "eval_tasks" in vars(cls))
    if config.prompt_data and author is not Env:
        why = f"those of {name} go with its own tasks, not with the rows of {config.prompt_data}"
    return (
        f"{asked}there are no evaluation sets: {why}; name rows to score on with "
        "--eval-prompt-data NAME FILE"
    )


def _names(config: RunConfig) -> dict[str, str]:
    """Where a row has what each task has under these keys."""
    return {"metadata": config.metadata_key, "tools": config.tool_key}


def _keys_of_evaluations(config: RunConfig) -> dict[str, str]:
    """The keys under which rows of evaluations hold what the environments for rows look for under
    those of training, by these."""
    if config.env not in ROW_ENVS:
        return {}
    usual = {"input_key": "input", "label_key": "label"} | config.env_args
    given = {
        usual["input_key"]: config.eval_input_key,
        usual["label_key"]: config.eval_label_key,
        "tools": config.eval_tool_key,
    }
    return {name: key for name, key in given.items() if key is not None}


async def _read_all(path: Path, one: EvalSet) -> list[Task]:
    keys, names = _keys_of_evaluations(one.config), _names(one.config)
    source = RowSource(path, required_keys=list(keys.values()), names=names | keys)
    return [_told(task, one.metadata) async for task in source.tasks()]


def _told(task: Task, metadata: Mapping[str, object]) -> Task:
    """The task, with what its set says of each row."""
    if not metadata:
        return task
    own = task.row.get("metadata")
    whole = {**(own if isinstance(own, Mapping) else {}), **metadata}
    return msgspec.structs.replace(task, row={**task.row, "metadata": whole})
