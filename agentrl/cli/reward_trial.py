"""Rewards, filters and functions that play episodes, of the user's, are called before a run starts,
as `agentrl check-hook` calls them.

    parent: try_rewards -> child: the first task, and that of each evaluation set, played with made
    answers, and the group of these judged -> what was raised

What their code raises would fail each episode or group, so the run is refused with its words and
line. A service that is away, and a call that does not come to an end, are notes: a reward model may
take long to load. So is what they raise where a run joins a cluster: a worker may have what this
host lacks. One process tries all that calls the same code. Not tried are what ships, what asks a
service which the run itself starts, a source that keeps its place, filters where no reward is
tried; and of a run that goes on, but for a dry run, nothing: its code has been called.
"""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio
import msgspec

from agentrl.cli.hooks.deadline import Deadline
from agentrl.config.conditions import GENERATE, ROW_ENVS
from agentrl.config.env_vars import env_vars
from agentrl.config.eval_sets import EvalSet, eval_sets
from agentrl.config.mixture import ways_of
from agentrl.config.refusals import gather
from agentrl.config.run import RunConfig
from agentrl.errors import AgentRLError, ConfigError, DataError, EnvError, InfrastructureError
from agentrl.shipped import FILTERS
from agentrl.trial import answer, asked, places_in, run_apart
from agentrl.user_traceback import words_of

if TYPE_CHECKING:
    from agentrl.cli.hooks.worker import Bench
    from agentrl.types import Task

__all__ = ["LIMIT_S", "START_LIMIT_S", "try_rewards"]

#: Seconds that the calls may take in a dry run, and where a run is to start.
LIMIT_S, START_LIMIT_S = 60.0, 20.0
#: Seconds that the process has to start in.
_START_S = 300.0
#: How what is raised is called where somebody that is asked does not answer.
_AWAY = re.compile(r"\b\w*(?:Connect|Timeout)\w*: ")


_Whose = Literal["reward", "filter", "unknown"]


class _Play(msgspec.Struct, frozen=True):
    """What is to be played, under these flags. `rows`: the evaluation set that has the task."""

    config: RunConfig
    rows: EvalSet | None = None

    @property
    def where(self) -> str:
        """The task, in words."""
        of = "" if self.rows is None else f" of evaluation set {self.rows.name}"
        return f"the first row{of}"


class _Question(msgspec.Struct, frozen=True):
    plays: list[_Play]
    limit_s: float


class _Reply(msgspec.Struct, frozen=True):
    """What came of it: `says` what was raised, or where the code stands that did not come to an
    end. `whose` code that was; a process that ended or hung does not say. `where`: on which
    task."""

    fate: Literal["fine", "raised", "away", "late"]
    says: str = ""
    whose: _Whose = "reward"
    where: str = "the first row"


def try_rewards(
    config: RunConfig, limit_s: float | None = None, *, dry_run: bool = True
) -> list[str]:
    """Notes on functions of --custom-rm-path and --custom-generate-function-path, and on the filter
    of their groups, that could not be tried to the end. Raises ConfigError with what they raise.
    `limit_s`: other seconds than are usual."""
    is_known = config.is_continued and not dry_run
    limit_s = limit_s or (LIMIT_S if dry_run else START_LIMIT_S)
    tried = [] if is_known or config.loads_rollouts else _plays(config)
    is_joined = config.ray_address is not None and not dry_run
    return gather(*(partial(_tried, plays, limit_s, is_joined=is_joined) for plays in tried))


def _plays(config: RunConfig) -> list[list[_Play]]:
    """What is to be played, by the code that it calls: of the ways to train with the same code the
    first, as parts of a mixture may share it, and each evaluation set."""
    found: dict[tuple[object, ...], list[_Play]] = {}
    for way in [] if config.eval_only else ways_of(config):
        if way.env in ROW_ENVS and (_has_code(way) or _has_filter(way)):
            found.setdefault(_code(way), [_Play(way)])
    sets: list[EvalSet] = []
    with suppress(AgentRLError):  # other checks say it
        sets.extend(eval_sets(config).values())
    for one in sets:
        if one.path is not None and one.env in ROW_ENVS and _has_code(one.config):
            alone = msgspec.structs.replace(
                one.config,
                env_mix={},
                eval_config=None,
                eval_prompt_data=[],
                dynamic_sampling_filter_path=None,
            )
            found.setdefault(_code(alone), []).append(_Play(alone, one))
    return [*found.values()]


def _code(way: RunConfig) -> tuple[object, ...]:
    args = way.env_args
    return (args.get("function"), args.get("rollout_function"), args.get("reward"), way.group_rm)


def _has_code(way: RunConfig) -> bool:
    return way.env == GENERATE or "reward" in way.env_args


def _has_filter(way: RunConfig) -> bool:
    """Whether groups are judged by a filter of the user's."""
    shipped = {None, *FILTERS.places, *FILTERS.theirs}
    return way.mode == "policy" and way.dynamic_sampling_filter_path not in shipped


def _tried(plays: Sequence[_Play], limit_s: float, *, is_joined: bool) -> list[str]:
    way = plays[0].config
    question = msgspec.json.encode(_Question([*plays], limit_s))
    ended = run_apart(__name__, question, limit_s + _START_S, env_vars(way))
    if ended.answer:
        reply = msgspec.json.decode(ended.answer, type=_Reply)
    elif "Timeout" in ended.printed:
        reply = _late(list(places_in(ended.printed))[::-1])
    else:
        reply = _Reply("raised", "it ended the process; raise an error in its place", "unknown")
    what, again = _named(way, reply)
    if reply.fate == "raised" and is_joined:
        return [f"{what} fails on {reply.where} on this host, {reply.says}; {again}"]
    if reply.fate == "raised":
        raise ConfigError(f"{what} fails on {reply.where}, {reply.says}; {again}")
    if reply.fate == "away":
        return [f"{what} could not be tried on {reply.where}: {reply.says}"]
    if reply.fate == "late":
        took = f"it did not come to an end within {limit_s:g} s{reply.says}"
        return [f"{what} was not tried to the end: {took}; {again}"]
    return []


def _named(way: RunConfig, reply: _Reply) -> tuple[str, str]:
    """What was tried, by its flags, and how to try it alone."""
    args, name = way.env_args, "dynamic-sampling-filter-path"
    hooks = list[tuple[str, str, object]]()
    if way.env == GENERATE and reply.whose != "filter":
        is_batch = "rollout_function" in args
        played = "rollout-function-path" if is_batch else "custom-generate-function-path"
        place = args.get("rollout_function") or args.get("function")
        hooks.append((f"--{played}", played, place))
        seen = "rollout-sample-hook-path"
        hooks += [(f"--{seen}", seen, place) for place in way.rollout_sample_hook_path]
    if "reward" in args and reply.whose != "filter":
        hook = "group-rm" if way.group_rm else "custom-rm-path"
        hooks.append(("--custom-rm-path", hook, args["reward"]))
    if _has_filter(way) and (reply.whose != "reward" or not hooks):
        hooks.append((f"--{name}", name, way.dynamic_sampling_filter_path))
    flags = " or ".join(f"{flag} {path}" for flag, _, path in hooks)
    commands = " and ".join(f"`agentrl check-hook {hook} {path}`" for _, hook, path in hooks)
    return flags, f"{commands} {'tries it' if len(hooks) == 1 else 'try them'} alone"


def _late(places: list[str]) -> _Reply:
    return _Reply("late", f" ({', '.join(places)})" if places else "", "unknown")


# ---- in the process of its own -------------------------------------------------------------------


def main() -> None:
    """What the child runs."""
    question = msgspec.json.decode(asked(), type=_Question)
    logging.getLogger("agentrl.actors").setLevel(logging.CRITICAL)  # what is raised is told anyway
    deadline = Deadline(question.limit_s, lambda places: _answer(_late(places)))
    try:
        with deadline:
            reply = _played(question.plays, deadline)
        _answer(reply)
    except BaseException as error:  # whatever it is, it is the user's
        _answer(_Reply("raised", words_of(error)))


def _answer(reply: _Reply) -> None:
    answer(msgspec.json.encode(reply))


def _played(plays: Sequence[_Play], deadline: Deadline) -> _Reply:
    """Until something is raised. All in one event loop, as a worker has it."""
    from agentrl.cli.hooks.worker import Bench

    ready = [(play, task) for play in plays if (task := _task(play)) is not None]
    at = list[_Play]()

    async def all_of() -> None:
        deadline.watch_loop()
        for play, task in ready:
            at.append(play)
            bench = Bench(play.config)
            async with bench.worker.endpoint:
                await _try_one(bench, play, task)

    try:
        anyio.run(all_of)
    except AgentRLError as error:
        return _reply_to(error, at[-1])
    return _Reply("fine")


def _task(play: _Play) -> "Task | None":
    """The first; None where nothing is tried, or other checks say why there is none."""
    from agentrl.envs.check.dry_reset import first_task
    from agentrl.envs.check.preflight import source_of
    from agentrl.envs.registry import load_env
    from agentrl.envs.slime_source import SlimeSource
    from agentrl.envs.tasks import first_of_set

    config = play.config
    try:
        cls = load_env(str(config.env))
        env = cls(**config.env_args)
        asks = env.asks_server and "reward" not in config.env_args  # a judge costs
        if asks or cls.service_specs(config.env_args):
            return None
        if play.rows is not None:
            return first_of_set(play.rows)
        source = source_of(config, cls)
        keeps = isinstance(source, SlimeSource) and source.keeps_place
        return None if keeps else first_task(source)
    except AgentRLError:
        return None


async def _try_one(bench: "Bench", play: _Play, task: "Task") -> None:
    from agentrl.cli.hooks.worker import SET, answers_to

    config, answers = play.config, answers_to(play.config, task)
    if play.rows is not None:
        await bench.play(task, answers[0], evaluation=SET)
    elif "rollout_function" in config.env_args:
        await bench.play_group(task, answers[0])
    elif (config.group_rm and config.mode == "policy") or _has_filter(config):
        num = config.n_samples_per_prompt
        await bench.score(task, (answers * num)[:num])
    else:
        await bench.play(task, answers[0])


def _reply_to(error: AgentRLError, play: _Play) -> _Reply:
    from agentrl.cli.hooks.worker import FilterError

    whose: _Whose = "unknown" if play.config.env == GENERATE else "reward"
    if isinstance(error, FilterError):
        whose = "filter"
    is_the_users = whose != "reward" or "reward" in play.config.env_args
    if not is_the_users or (isinstance(error, DataError) and not isinstance(error, EnvError)):
        return _Reply("fine")  # other checks say it
    is_away = isinstance(error, InfrastructureError) or _AWAY.search(str(error))
    return _Reply("away" if is_away else "raised", str(error), whose, play.where)
