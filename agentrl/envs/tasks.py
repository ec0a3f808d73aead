"""Which tasks a run trains on and is evaluated with, from its flags and its Env."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import anyio
import msgspec

from agentrl.config.conditions import ROW_ENVS
from agentrl.config.entries import refuse_twice
from agentrl.config.eval_sets import EvalSet, eval_sets, name_of
from agentrl.config.mixture import FLAG, MixPart, parts_of
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env
from agentrl.envs.eval_function import CALLED, call_of
from agentrl.envs.given import GivenSource, listed
from agentrl.envs.mixed import MixedSource
from agentrl.envs.prompt_lengths import leave_out_long_prompts, room_for_prompts
from agentrl.envs.registry import load_env
from agentrl.envs.slime_place import folder_of
from agentrl.envs.slime_source import SlimeSource
from agentrl.envs.sources import RowSource
from agentrl.errors import ConfigError
from agentrl.types import Task, TaskSource

__all__ = [
    "RunTasks",
    "first_of_set",
    "open_eval_sets",
    "open_source",
    "open_tasks",
    "own_source",
]


class RunTasks(msgspec.Struct, frozen=True):
    """What a run trains on, its evaluation sets by name, and notes on the rows for the user."""

    source: TaskSource
    eval_sets: dict[str, list[Task]]
    notes: list[str] = []


def open_tasks(config: RunConfig, env_class: type[Env], run: Path | None = None) -> RunTasks:
    """Both, as the flags and the Env say, but for rows with a prompt that is too long. `run`: the
    folder of the run that asks. Raises ConfigError."""
    notes: list[str] = []
    source = _open(config, env_class, run, notes)
    if config.eval_function_path is not None:
        return RunTasks(source, {CALLED: [call_of(0)]}, notes)
    return RunTasks(source, open_eval_sets(config, env_class), notes)


def open_source(
    config: RunConfig, env_class: type[Env], run: Path | None = None, part: str = ""
) -> TaskSource:
    """The training tasks: `--prompt-data`, or else the Env's own; where nothing is trained and
    there are none, those to be scored. Of a mixture: those of its parts. `run`: the folder of the
    run that asks; without one nothing is kept of what is asked. `part`: of which part these are.

    Raises ConfigError when there are none.
    """
    if (parts := parts_of(config)) and not config.eval_only:
        return _mixed(config, parts, [_open_part(one, run) for one in _by_source(parts).values()])
    if config.has_data_source and config.mode == "policy":
        return SlimeSource(config, None if run is None else folder_of(run, part))
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
        if config.eval_function_path is not None:
            tasks = [call_of(0)]
        return GivenSource(tasks, lambda: tasks, name="eval_tasks")
    if source is None:
        raise ConfigError(f"--env {config.env} brings no tasks of its own; give it --prompt-data")
    return source


def _open(
    config: RunConfig, env_class: type[Env], run: Path | None, notes: list[str]
) -> TaskSource:
    """As `open_source`, but for rows with a prompt that is too long, of which `notes` says."""
    if not (parts := parts_of(config)):
        source = open_source(config, env_class, run)
        notes.extend(leave_out_long_prompts(config, source, env_class))
        return source
    sources = []
    for part in _by_source(parts).values():
        cls = load_env(str(part.config.env))
        sources.append(source := _open_part(part, run))
        found = leave_out_long_prompts(part.config, source, cls)
        notes.extend(f"{part.whose}: {note}" for note in found)
    return _mixed(config, parts, sources)


def _open_part(part: MixPart, run: Path | None) -> TaskSource:
    try:
        return open_source(part.config, load_env(str(part.config.env)), run, part.name)
    except ConfigError as error:
        raise ConfigError(f"{part.whose}: {error}") from error


def _by_source(parts: Sequence[MixPart]) -> dict[str, MixPart]:
    """The first part of each source."""
    found: dict[str, MixPart] = {}
    for part in parts:
        found.setdefault(_source_key(part.config), part)
    return found


def _mixed(
    config: RunConfig, parts: Sequence[MixPart], sources: Sequence[TaskSource]
) -> MixedSource:
    """`sources`: one for each of `_by_source`."""
    opened = dict(zip(_by_source(parts), sources, strict=True))
    own = [opened[_source_key(part.config)] for part in parts]
    return MixedSource(parts, own, config.rollout_batch_size)


def _source_key(config: RunConfig) -> str:
    """What the tasks of a part follow from; two with the same share them."""
    if config.has_data_source:  # it is shown all flags
        return repr(config)
    played = (config.env, config.env_args)
    if config.prompt_data is None:
        return repr(played)
    room = room_for_prompts(config)
    kept = room and (room.tokens, played)
    return repr((config.prompt_data, config.metadata_key, config.tool_key, kept))


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
    own. Of a mixture: those that its parts name, and for the others those of their Envs. None
    where a function of --eval-function-path plays them.

    Raises ConfigError when there are none, and evaluations are asked for.
    """
    if config.eval_function_path is not None:
        return {}
    sets = {n: _of_part(_tasks_of(one), one.part) for n, one in eval_sets(config).items()}
    if config.names_eval_sets:
        return sets
    parts = parts_of(config)
    for part in parts:
        own = _sets_of_part(part)
        refuse_twice(FLAG, [*sets, *own])
        sets |= own
    if not parts and not config.prompt_data:
        sets = _own_sets(config, env_class)
    if not sets and (config.eval_only or config.eval_interval is not None):
        raise ConfigError(_no_sets(config, env_class))
    return sets


def _sets_of_part(part: MixPart) -> dict[str, list[Task]]:
    """Those that its Env brings, if it names none, as sets of the run."""
    if part.eval or part.config.prompt_data is not None:
        return {}
    sets = _own_sets(part.config, load_env(str(part.config.env)))
    named = ((name_of(part.name, name), tasks) for name, tasks in sets.items())
    return {name: _of_part(tasks, part.name) for name, tasks in named}


def _of_part(tasks: list[Task], part: str) -> list[Task]:
    return [msgspec.structs.replace(task, part=part) for task in tasks] if part else tasks


def _tasks_of(one: EvalSet) -> list[Task]:
    if one.path is not None:
        return anyio.run(_read_all, one)
    sets = _own_sets(one.config, load_env(one.env))
    name = one.brought or one.name
    if name not in sets:
        raise ConfigError(
            f"evaluation set {one.name} has no `path`, and {one.env} brings no set {name}; "
            f"it brings {', '.join(sets) or 'none'}"
        )
    return sets[name]


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


def first_of_set(one: EvalSet) -> Task:
    """The first task of a set that has rows. Raises ConfigError for rows that cannot be opened,
    DataError for a first one that cannot be read."""
    return _told(next(_rows_of(one).first(1)), one.metadata)


async def _read_all(one: EvalSet) -> list[Task]:
    return [_told(task, one.metadata) async for task in _rows_of(one).tasks()]


def _rows_of(one: EvalSet) -> RowSource:
    keys, names = _keys_of_evaluations(one.config), _names(one.config)
    return RowSource(str(one.path), required_keys=list(keys.values()), names=names | keys)


def _told(task: Task, metadata: Mapping[str, object]) -> Task:
    """The task, with what its set says of each row."""
    if not metadata:
        return task
    own = task.row.get("metadata")
    whole = {**(own if isinstance(own, Mapping) else {}), **metadata}
    return msgspec.structs.replace(task, row={**task.row, "metadata": whole})
