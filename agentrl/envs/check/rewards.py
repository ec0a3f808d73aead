"""Which rewards that ship score a run's tasks, as far as that is known before anything starts.

    --rm-type, and rm_type of each row -> asks a model? -> one at --rm-url that is no teacher

A reward of the user's own, and an Env that scores otherwise, are no matter of this module.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from agentrl.config.eval_sets import eval_sets
from agentrl.config.run import RunConfig
from agentrl.envs.check.rows import first_rows
from agentrl.envs.env import Env
from agentrl.envs.generate import GenerateEnv
from agentrl.envs.reward_types import RewardType, scorers, type_of_row
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.envs.tasks import open_eval_sets
from agentrl.errors import ConfigError, EnvError
from agentrl.types import Task, TaskSource
from agentrl.visible import shown_url

__all__ = ["asks_model", "refuse_shared_url", "shipped_rewards"]


def shipped_rewards(
    args: Mapping[str, Any], cls: type[Env], tasks: Iterable[Task]
) -> Iterator[tuple[Task | None, RewardType]]:
    """What `--rm-type` names, with None, and then what each task asks for by itself, where rewards
    that ship score them. `args` are those of the Env. Of an Env that plays a function of the user's
    (`generate`), which makes samples and not rows: the first alone."""
    is_generate = issubclass(cls, GenerateEnv)
    if not issubclass(cls, SingleTurnEnv) and not (is_generate and "rm_type" in args):
        return
    own, usual = scorers(args.get("reward"), args.get("rm_type"))
    if own is not None:  # a function of the user's comes before what a row asks for
        return
    yield None, usual
    if is_generate or args.get("reward"):
        return
    for task in tasks:
        with suppress(EnvError):  # a name that nothing bears ends its episode
            if (named := type_of_row(task.row)) is not None:
                yield task, named


def asks_model(kind: RewardType) -> bool:
    """Whether it asks a model at an address."""
    return "url" in kind.facts.wants


def refuse_shared_url(config: RunConfig, cls: type[Env], source: TaskSource) -> None:
    """`--rm-url` names one server: a teacher's is no reward model, and answers as if it were.
    Raises ConfigError."""
    given = config.env_args
    is_asked = config.has_served_teacher and issubclass(cls, SingleTurnEnv)
    if not is_asked or "reward_service" in given:
        return
    apart = {name for name, one in eval_sets(config).items() if one.config.rm_url != config.rm_url}
    sets = [rows for name, rows in open_eval_sets(config, cls).items() if name not in apart]
    tasks = chain(first_rows(source), *sets)
    flag = "--custom-rm-path" if given.get("reward") else "--rm-type"
    for task, kind in shipped_rewards(given, cls, tasks):
        if asks_model(kind):
            whose = flag if task is None else f"rm_type of the row of task {task.id}"
            raise ConfigError(
                f"{whose} {kind.name} with --opd-type sglang: --rm-url "
                f"{shown_url(config.rm_url or '')} names the "
                "teacher, and the reward would ask it too; have the run start the reward model "
                "(`reward_service` of --env-args), or give --opd-type megatron"
            )
