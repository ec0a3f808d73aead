"""What can be known of an environment and its tasks before anything starts.

    import -> look at the class -> make -> rows of --prompt-data -> services, evaluation sets
        -> first task -> reset once, if the Env needs no service and does not own its loop
        -> its prompt fits the model, or that of a later task does
        -> services of the run have names of their own

Each mistake is a ConfigError (a malformed row: DataError) that names the class, the method and the
line to write. Nothing of it outlives the check: the run makes its own instances.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agentrl.bounds import MAX_EVALUATIONS
from agentrl.config.conditions import GENERATE, ROW_ENVS
from agentrl.config.eval_sets import EvalSet, eval_sets, named_sets
from agentrl.config.mixture import MixPart, parts_of
from agentrl.config.run import RunConfig
from agentrl.envs.check.dry_reset import context_of, discard, dry_reset, first_task, make_env
from agentrl.envs.check.eval_rows import check_eval_rows
from agentrl.envs.check.first_prompts import first_prompts, more_tasks
from agentrl.envs.check.rewards import refuse_shared_url
from agentrl.envs.check.rows import check_rows
from agentrl.envs.check.signatures import check_class
from agentrl.envs.depth import require_shallow
from agentrl.envs.env import Env, ServiceSpec
from agentrl.envs.eval_function import EVAL_FUNCTIONS
from agentrl.envs.generate import GenerateEnv
from agentrl.envs.prompt_lengths import has_prompts
from agentrl.envs.registry import load_env
from agentrl.envs.rollout import Rollout
from agentrl.envs.services import services_of_run
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.envs.slime_source import SlimeSource
from agentrl.envs.sources import RowSource
from agentrl.envs.tasks import open_eval_sets, open_source
from agentrl.envs.travel import arrived
from agentrl.errors import AgentRLError, ConfigError, DataError
from agentrl.types import Task, TaskSource
from agentrl.user_code import load
from agentrl.user_traceback import words_of

__all__ = [
    "check_eval_sets",
    "preflight",
    "services_of",
    "source_of",
    "tools_of",
]


def preflight(config: RunConfig) -> list[str]:
    """Check what `config` says of its environment and tasks; returns notes for the user.

    Raises ConfigError, or DataError with file and line.
    """
    parts = parts_of(config)
    notes = _of_parts(config, parts) if parts else _of_one(config)
    if config.has_env:
        services_of_run(config, [*eval_sets(config).values()])
    return notes


def _of_one(config: RunConfig, *, is_part: bool = False) -> list[str]:
    cls = load_env(config.env or "single-turn")
    if config.dialogue_key is not None:
        return check_rows(open_source(config, cls))
    check_class(cls)
    source, env = source_of(config, cls), make_env(cls, config.env_args)
    is_called = config.eval_only and config.eval_function_path is not None
    notes = check_rows(source, _takes(config, env), is_part=is_part)
    services = services_of(config, cls)
    notes += check_eval_sets(config, cls)
    refuse_shared_url(config, cls, source)
    # What a source that keeps its place gives is gone from it: only the run asks it.
    keeps = isinstance(source, SlimeSource) and source.keeps_place
    task, changed = None if keeps or is_called else first_task(source), None
    if task is not None:
        task, changed = arrived(task)
    is_rollout = issubclass(cls, Rollout)
    if cls is not SingleTurnEnv and not is_rollout:
        notes = [tools_of(env), *_unverified(cls), *notes]
    notes += [*_about_reward(config), *([changed] if changed else [])]
    if services or task is None or is_rollout:
        discard(env)
        return notes
    Env.bind(env, context_of(config))
    place = source.where_at(0) if isinstance(source, RowSource) else ""
    sized = first_prompts(config)
    look = sized.look if sized else None
    note = dry_reset(env, task, seed=config.rollout_seed, place=place, look=look)
    if sized is not None and sized.all_too_long:
        note = more_tasks(sized, config, source, cls)
    return [*notes, note] if note else notes


def _takes(config: RunConfig, env: Env) -> Callable[[dict[str, Any]], object] | None:
    """What takes a row up, where a row is all that is needed to; it raises EnvError."""
    if isinstance(env, GenerateEnv):
        Env.bind(env, context_of(config))
        return env.take
    if not has_prompts(config):
        return None
    assert isinstance(env, SingleTurnEnv)
    return env.take


def _of_parts(config: RunConfig, parts: Sequence[MixPart]) -> list[str]:
    """Each part is checked as a run of its own, and the evaluation sets of all together."""
    notes: list[str] = []
    for part in parts:
        with _named(part.whose):
            if config.eval_only:  # its tasks are those of the sets
                _check_made(part.config)
            else:
                notes += [f"{part.whose}: {note}" for note in _of_one(part.config, is_part=True)]
    if config.has_env:
        notes += check_eval_sets(config, load_env(str(parts[0].config.env)))
    return notes


@contextmanager
def _named(whose: str) -> Iterator[None]:
    """An error of user code or data says whose it is."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise type(error)(f"{whose}: {error}") from error


def _about_reward(config: RunConfig) -> Iterator[str]:
    """A thought before the answer earns nothing by exact match. Said before the start, because a
    run would show it only by a flat reward."""
    given = config.env_args.keys()
    if config.env not in ROW_ENVS:
        return
    if config.env == GENERATE and given.isdisjoint(("reward", "rm_type")):
        yield (
            "no --rm-type and no --custom-rm-path: a sample is worth its own `reward`; of one "
            "without, it is 1 where the whole response is the label, and 0 elsewhere"
        )
        return
    if "reward" in given and "rm_type" in given:
        yield "--custom-rm-path scores every row, and --rm-type none, as in slime"
    elif given.isdisjoint(("reward", "rm_type")):
        yield (
            "no --rm-type and no --custom-rm-path: the reward is 1 where the model's whole text is "
            "the label, and 0 elsewhere, but for rows whose metadata says rm_type"
        )


def source_of(config: RunConfig, cls: type[Env]) -> TaskSource:
    """The training tasks. Raises ConfigError for what is no source, and for what raises."""
    with _calling(cls, "train_tasks"):
        return open_source(config, cls)


def services_of(config: RunConfig, cls: type[Env]) -> dict[str, ServiceSpec]:
    """The services by name. Raises ConfigError for what is none, and for what raises."""
    with _calling(cls, "service_specs"):
        services: object = cls.service_specs(config.env_args)
    if isinstance(services, dict) and all(isinstance(s, ServiceSpec) for s in services.values()):
        return services
    raise ConfigError(
        f"{cls.__qualname__}.service_specs returned {services!r:.80}; return a dict of ServiceSpec "
        "by name"
    )


def check_eval_sets(config: RunConfig, cls: type[Env]) -> list[str]:
    """Notes on the rows of evaluation sets. Raises ConfigError for sets that are none, for an Env
    that cannot be had, for a first row that cannot be played, and for what raises."""
    if config.eval_function_path is not None:
        load(EVAL_FUNCTIONS, config.eval_function_path)
        named_sets(config)
        return []
    named = eval_sets(config)
    for one in named.values():
        _check_env_of(one, config)
    with _calling(cls, "eval_tasks"):
        sets = open_eval_sets(config, cls)
    if len(sets) > MAX_EVALUATIONS:
        raise ConfigError(
            f"there are {len(sets)} evaluation sets, and at most {MAX_EVALUATIONS} can be played "
            "at once: put some of them together"
        )
    for name, tasks in sets.items():
        for task in tasks:
            require_shallow(task.row, f"the row of task {task.id} of evaluation set {name}")
    return [note for one in named.values() for note in _on_rows(one, sets[one.name])]


def _on_rows(one: EvalSet, tasks: Sequence[Task]) -> list[str]:
    if one.path is None:  # its Env brings them
        return []
    whose = f"evaluation set {one.name}"
    with _named(whose):
        return [f"{whose}: {note}" for note in check_eval_rows(one, tasks)]


def _check_env_of(one: EvalSet, config: RunConfig) -> None:
    """Make the Env of a set, where it is another one than that of the run."""
    if (one.env, one.config.env_args) == (config.env or "single-turn", config.env_args):
        return
    with _named(f"evaluation set {one.name}"):
        _check_made(one.config)


def _check_made(config: RunConfig) -> None:
    """Make the Env of `config`, and look at what it needs."""
    check_class(cls := load_env(config.env or ROW_ENVS[0]))
    discard(make_env(cls, config.env_args))
    services_of(config, cls)


@contextmanager
def _calling(cls: type[Env], name: str) -> Iterator[None]:
    """What a class method raises is a ConfigError in its name."""
    try:
        yield
    except AgentRLError:
        raise
    except Exception as error:
        raise ConfigError(f"{cls.__qualname__}.{name} raised {words_of(error)}") from error


def tools_of(env: Env) -> str:
    """What the model may call: a forgotten `@tool` shows here and nowhere else."""
    nothing = "none before reset (`@tool` above a method makes it one)"
    tools = ", ".join(_signatures(env)) or nothing
    return f"environment {type(env).__qualname__}; tools of the model: {tools}"


def _unverified(cls: type[Env]) -> Iterator[str]:
    """Only its author knows what `score` reads: tools may have changed what it looks at."""
    rewards_text = cls.step is Env.step and cls.run_tools is Env.run_tools
    if rewards_text and cls.reward_reads_text_only is None:
        yield (
            f"nothing verifies where the rewards of {cls.__qualname__} come from; if its score "
            "reads its text and what reset has set, and nothing that a tool did, write "
            "`reward_reads_text_only = True` in the class (False ends this note)"
        )


def _signatures(env: Env) -> Iterator[str]:
    for name, tool in env.tools.items():
        yield f"{name}({', '.join(tool.spec.parameters.get('properties', ()))})"
