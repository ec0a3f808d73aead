"""A reward of the user's is called by a dry run, as `agentrl check-hook` calls it.

    parent: try_rewards -> child: the first task, played with made answers -> what it raised

What its code raises would fail each episode, so the dry run is refused with its words and line. A
service that is away, and a call that does not come to an end, are notes: a reward model may take
long to load. Not tried are rewards of samples that a function of the user's plays, and those that
ask a service which the run itself starts.
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
from agentrl.trial import answer, asked, places_in, run_apart
from agentrl.user_traceback import words_of

__all__ = ["LIMIT_S", "try_rewards"]

#: Seconds that the calls may take.
LIMIT_S = 60.0
#: Seconds that the process has to start in.
_START_S = 300.0
#: How what is raised is called where somebody that is asked does not answer.
_AWAY = re.compile(r"\b\w*(?:Connect|Timeout)\w*: ")


class _Question(msgspec.Struct, frozen=True):
    config: RunConfig
    limit_s: float


class _Reply(msgspec.Struct, frozen=True):
    """What came of it: `says` what was raised, or where it stands that did not come to an end."""

    fate: Literal["fine", "raised", "away", "late"]
    says: str = ""


def try_rewards(config: RunConfig, limit_s: float = LIMIT_S) -> list[str]:
    """Notes on functions of --custom-rm-path that could not be tried to the end. Raises ConfigError
    with what they raise."""
    ways = [way for way in ways_of(config) if _is_to_be_tried(way)]
    # parts of a mixture may share it
    first = {(way.env_args["reward"], way.group_rm): way for way in reversed(ways)}
    return gather(*(partial(_tried, way, limit_s) for way in first.values()))


def _is_to_be_tried(way: RunConfig) -> bool:
    return way.env in ROW_ENVS and way.env != GENERATE and "reward" in way.env_args


def _tried(way: RunConfig, limit_s: float) -> list[str]:
    what = f"--custom-rm-path {way.env_args['reward']}"
    question = msgspec.json.encode(_Question(way, limit_s))
    ended = run_apart(__name__, question, limit_s + _START_S)
    if ended.answer:
        reply = msgspec.json.decode(ended.answer, type=_Reply)
    elif "Timeout" in ended.printed:
        reply = _late(list(places_in(ended.printed))[::-1])
    else:
        reply = _Reply("raised", "it ended the process; raise an error in its place")
    hook = "group-rm" if way.group_rm else "custom-rm-path"
    again = f"`agentrl check-hook {hook} {way.env_args['reward']}` tries it alone"
    if reply.fate == "raised":
        raise ConfigError(f"{what} fails on the first row, {reply.says}; {again}")
    if reply.fate == "away":
        return [f"{what} could not be tried on the first row: {reply.says}"]
    if reply.fate == "late":
        return [f"{what} did not come to an end within {limit_s:g} s{reply.says}; {again}"]
    return []


def _late(places: list[str]) -> _Reply:
    return _Reply("late", f" ({', '.join(places)})" if places else "")


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
    from agentrl.cli.hooks.worker import Bench, answers_to, on_bench, task_of
    from agentrl.envs.registry import load_env

    logging.getLogger("agentrl.actors").setLevel(logging.CRITICAL)  # what is raised is told anyway
    with deadline:
        try:
            cls = load_env(str(config.env))
            cls(**config.env_args)
            task = task_of(config)
            if cls.service_specs(config.env_args):
                return _Reply("fine")
        except AgentRLError:  # other checks say it
            return _Reply("fine")
        answers = answers_to(config, task)

        async def play(bench: Bench) -> None:
            if config.group_rm and config.mode == "policy":
                num = config.n_samples_per_prompt
                await bench.judge(task, (answers * num)[:num])
            else:
                await bench.play(task, answers[0])

        try:
            on_bench(HookTrial(config, {}, Noted(), deadline), play)
        except InfrastructureError as error:
            return _Reply("away", str(error))
        except AgentRLError as error:
            return _Reply("away" if _AWAY.search(str(error)) else "raised", str(error))
    return _Reply("fine")
