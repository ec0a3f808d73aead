"""A reward and a filter of the user's are called by a dry run, as `agentrl check-hook` calls them.

    parent: try_rewards -> child: the first task, played with made answers, and the group of these
    judged -> what was raised

What their code raises would fail each episode or group, so the dry run is refused with its words
and line. A service that is away, and a call that does not come to an end, are notes: a reward model
may take long to load. Not tried are rewards of samples that a function of the user's plays, those
that ask a service which the run itself starts, and filters where no reward is tried.
"""

import logging
import re
from functools import partial
from typing import Literal

import msgspec

from agentrl.cli.hooks.deadline import Deadline
from agentrl.cli.hooks.noted import Noted
from agentrl.cli.hooks.trial import HookTrial
from agentrl.config.conditions import GENERATE, ROW_ENVS
from agentrl.config.mixture import ways_of
from agentrl.config.refusals import gather
from agentrl.config.run import RunConfig
from agentrl.errors import AgentRLError, ConfigError, InfrastructureError
from agentrl.shipped import FILTERS
from agentrl.trial import answer, asked, places_in, run_apart
from agentrl.user_traceback import words_of

__all__ = ["LIMIT_S", "try_rewards"]

#: Seconds that the calls may take.
LIMIT_S = 60.0
#: Seconds that the process has to start in.
_START_S = 300.0
#: How what is raised is called where somebody that is asked does not answer.
_AWAY = re.compile(r"\b\w*(?:Connect|Timeout)\w*: ")


_Whose = Literal["reward", "filter", "unknown"]


class _Question(msgspec.Struct, frozen=True):
    config: RunConfig
    limit_s: float


class _Reply(msgspec.Struct, frozen=True):
    """What came of it: `says` what was raised, or where the code stands that did not come to an
    end. `whose` code that was; a process that ended or hung does not say."""

    fate: Literal["fine", "raised", "away", "late"]
    says: str = ""
    whose: _Whose = "reward"


def try_rewards(config: RunConfig, limit_s: float = LIMIT_S) -> list[str]:
    """Notes on functions of --custom-rm-path, and on the filter of their groups, that could not be
    tried to the end. Raises ConfigError with what they raise."""
    ways = [way for way in ways_of(config) if _is_to_be_tried(way)]
    # parts of a mixture may share it
    first = {(way.env_args.get("reward"), way.group_rm): way for way in reversed(ways)}
    return gather(*(partial(_tried, way, limit_s) for way in first.values()))


def _is_to_be_tried(way: RunConfig) -> bool:
    is_played = way.env in ROW_ENVS and way.env != GENERATE
    return is_played and ("reward" in way.env_args or _has_filter(way))


def _has_filter(way: RunConfig) -> bool:
    """Whether groups are judged by a filter of the user's."""
    shipped = {None, *FILTERS.places, *FILTERS.theirs}
    return way.mode == "policy" and way.dynamic_sampling_filter_path not in shipped


def _tried(way: RunConfig, limit_s: float) -> list[str]:
    question = msgspec.json.encode(_Question(way, limit_s))
    ended = run_apart(__name__, question, limit_s + _START_S)
    if ended.answer:
        reply = msgspec.json.decode(ended.answer, type=_Reply)
    elif "Timeout" in ended.printed:
        reply = _late(list(places_in(ended.printed))[::-1])
    else:
        reply = _Reply("raised", "it ended the process; raise an error in its place", "unknown")
    what, again = _named(way, reply)
    if reply.fate == "raised":
        raise ConfigError(f"{what} fails on the first row, {reply.says}; {again}")
    if reply.fate == "away":
        return [f"{what} could not be tried on the first row: {reply.says}"]
    if reply.fate == "late":
        return [f"{what} did not come to an end within {limit_s:g} s{reply.says}; {again}"]
    return []


def _named(way: RunConfig, reply: _Reply) -> tuple[str, str]:
    """What was tried, by its flags, and how to try it alone."""
    reward, name = way.env_args.get("reward"), "dynamic-sampling-filter-path"
    hooks = list[tuple[str, str, object]]()
    if reward is not None and reply.whose != "filter":
        hook = "group-rm" if way.group_rm else "custom-rm-path"
        hooks.append(("--custom-rm-path", hook, reward))
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
    deadline = Deadline(question.limit_s, lambda places: _answer(_late(places)))
    try:
        _answer(_played(question.config, deadline))
    except BaseException as error:  # whatever it is, it is the user's
        _answer(_Reply("raised", words_of(error)))


def _answer(reply: _Reply) -> None:
    answer(msgspec.json.encode(reply))


def _played(config: RunConfig, deadline: Deadline) -> _Reply:
    from agentrl.cli.hooks.worker import Bench, FilterError, answers_to, on_bench, task_of
    from agentrl.envs.registry import load_env

    logging.getLogger("agentrl.actors").setLevel(logging.CRITICAL)  # what is raised is told anyway
    with deadline:
        try:
            cls = load_env(str(config.env))
            env = cls(**config.env_args)
            task = task_of(config)
            asks = env.asks_server and "reward" not in config.env_args  # a judge costs
            if asks or cls.service_specs(config.env_args):
                return _Reply("fine")
        except AgentRLError:  # other checks say it
            return _Reply("fine")
        answers = answers_to(config, task)

        async def play(bench: Bench) -> None:
            if (config.group_rm and config.mode == "policy") or _has_filter(config):
                num = config.n_samples_per_prompt
                await bench.judge(task, (answers * num)[:num])
            else:
                await bench.play(task, answers[0])

        try:
            on_bench(HookTrial(config, {}, Noted(), deadline), play)
        except AgentRLError as error:
            whose: _Whose = "filter" if isinstance(error, FilterError) else "reward"
            if whose not in ("filter", *config.env_args):  # other checks say it
                return _Reply("fine")
            is_away = isinstance(error, InfrastructureError) or _AWAY.search(str(error))
            return _Reply("away" if is_away else "raised", str(error), whose)
    return _Reply("fine")
