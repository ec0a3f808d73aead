"""`agentrl env`: look for environments, check one, play an episode of it, begin a new one."""

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.envs.env import Env
    from agentrl.envs.ground import Finding, Ground
    from agentrl.types import Task

__all__ = ["ABOUT", "add_commands"]

ABOUT = """\
Environments: those that are known here, what one promises and keeps, an episode of it by hand or by
a served model, and a new one to begin with. ENV is a name of the list, pkg.module:Class, or
path/to/file.py.

A check plays whole episodes, and calls every tool with arguments made from its schema, in earnest.

    agentrl env list
    agentrl env new double
    agentrl env check double.py --prompt-data double.jsonl
    agentrl env play double.py --prompt-data double.jsonl
    agentrl env play double.py --prompt-data double.jsonl --url http://127.0.0.1:30000

exit codes:
  0    done; for check: no promise is broken
  1    check: a promise is broken; each is a line that begins with BAD (one that begins with --
       could not be tried in full)
       play: the episode of a served model failed
  2    the command line, the Env or its arguments are wrong
  3    a service of the Env could not be started
  65   a row of --prompt-data is malformed
"""
#: Seconds that an Env's services may take to be ready.
START_S = 120.0


def add_commands(parser: argparse.ArgumentParser) -> None:
    """The sub-commands of `agentrl env`."""
    commands = parser.add_subparsers(metavar="WHAT", required=True)
    listing = commands.add_parser("list", help="names of environments, and who brings each")
    listing.set_defaults(command=_list)
    for name, command, brief in (
        ("check", _check, "try what an Env or a rollout promises"),
        ("play", _play, "play an episode: you are the policy, or a served model is"),
    ):
        made = commands.add_parser(name, help=brief)
        made.add_argument("env", metavar="ENV", help="name, pkg.module:Class or path/to/file.py")
        made.add_argument("--env-args", metavar="JSON", type=_object, default={})
        made.add_argument("--prompt-data", metavar="FILE", help="tasks, when the Env brings none")
        made.add_argument("--seed", metavar="N", type=int, default=0)
        made.add_argument("--allow-unsafe-sandbox", action="store_true", help="docs/sandbox.md")
        made.set_defaults(command=command)
        if command is _play:
            _add_policy(made)
    new = commands.add_parser("new", help="write a small Env and its tasks, to be changed")
    new.add_argument("name", metavar="NAME", help="of the file NAME.py, and of the class in it")
    new.set_defaults(command=_new)


def _add_policy(parser: argparse.ArgumentParser) -> None:
    from agentrl.config.run import RunConfig

    usual = RunConfig()
    served = parser.add_argument_group("a served model in your place")
    served.add_argument("--url", metavar="URL", help="of an SGLang server, or of a router")
    served.add_argument("--model", metavar="DIR", help="its tokenizer; as the server says")
    served.add_argument("--chat-format", metavar="NAME", default=usual.chat_format)
    served.add_argument("--temperature", metavar="T", type=float, default=usual.rollout_temperature)


def _object(text: str) -> dict[str, Any]:
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return found


def _list(arguments: argparse.Namespace) -> int:
    from agentrl.envs.registry import announced_envs

    del arguments
    for name, owner in announced_envs():
        sys.stdout.write(f"{name:<24} {owner}\n")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    num_broken = num_partly = 0
    with _unlogged(), _ground(arguments) as ground:
        sys.stdout.write(f"{_tools_of(ground)}\n")
        for finding in _findings(ground):
            num_broken += finding.problem is not None
            num_partly += finding.note is not None
            mark = "BAD" if finding.problem else "-- " if finding.note else "ok "
            sys.stdout.write(f"{mark} {finding.promise}\n")
            for more in filter(None, (finding.problem, finding.note)):
                sys.stdout.write(f"    {more}\n")
    broken = "1 promise is broken" if num_broken == 1 else f"{num_broken} promises are broken"
    kept = "what could be tried is kept" if num_partly else "every promise is kept"
    words = broken if num_broken else kept
    sys.stdout.write(f"{ground.cls.__qualname__}: {words}\n")
    return 1 if num_broken else 0


def _tools_of(ground: "Ground") -> str:
    """What the model may call; a rollout says it to its model itself."""
    from agentrl.envs.preflight import tools_of
    from agentrl.envs.rehearsal import discard
    from agentrl.envs.rollout import Rollout

    if issubclass(ground.cls, Rollout):
        return f"agent {ground.cls.__qualname__}"
    env = ground.make()
    discard(env)
    return tools_of(env)


@contextmanager
def _unlogged() -> "Iterator[None]":
    """What an episode raises is in the findings; its traceback need not be on the screen too."""
    logger = logging.getLogger("agentrl.actors")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _findings(ground: "Ground") -> "Iterator[Finding]":
    from agentrl.envs.rollout import Rollout

    if issubclass(ground.cls, Rollout):
        from agentrl.actors.rollout_contract import check_rollout

        return check_rollout(ground, _announce)
    from agentrl.envs.contract import check_contract

    return check_contract(ground, _announce)


def _announce(promise: str) -> None:
    """What is tried now, for a person who waits; its finding takes the place of the line."""
    if sys.stdout.isatty():
        sys.stdout.write(f".. {promise}\r")
        sys.stdout.flush()


def _play(arguments: argparse.Namespace) -> int:
    import anyio

    with _ground(arguments) as ground:
        if arguments.url is None:
            from agentrl.envs.by_hand import play

            anyio.run(play, ground, sys.stdin, sys.stdout)
            return 0
        from agentrl.cli.served import Policy, play_served

        policy = Policy(
            arguments.url, arguments.model, arguments.chat_format, arguments.temperature
        )
        report = anyio.run(play_served, ground, policy, sys.stdout)
        return 1 if report.error else 0


def _refuse_rollout(cls: "type[Env]") -> None:
    from agentrl.envs.rollout import Rollout

    if issubclass(cls, Rollout):
        raise ConfigError(
            f"{cls.__qualname__} owns its loop, so it has no turns to play here; `agentrl "
            "env check` plays it with a model that says what a script has it say"
        )


def _new(arguments: argparse.Namespace) -> int:
    from agentrl.envs.template import write_template

    for line in write_template(arguments.name, Path.cwd()):
        sys.stdout.write(f"{line}\n")
    return 0


@contextmanager
def _ground(arguments: argparse.Namespace) -> "Iterator[Ground]":
    """What an Env is tried on: the first task, and its services, which end with this."""
    from agentrl.cli.services import running
    from agentrl.envs.ground import Ground
    from agentrl.envs.inspection import check_class
    from agentrl.envs.registry import load_env

    cls = load_env(arguments.env)
    check_class(cls)
    if arguments.command is _play:
        _refuse_rollout(cls)
    task = _first_task(cls, arguments)
    with running(cls.service_specs(arguments.env_args), START_S) as services:
        yield Ground(
            cls,
            arguments.env_args,
            task,
            services,
            arguments.seed,
            allow_unsafe_sandbox=arguments.allow_unsafe_sandbox,
        )


def _first_task(cls: "type[Env]", arguments: argparse.Namespace) -> "Task":
    from agentrl.envs.preflight import ROWS
    from agentrl.envs.rehearsal import LIMIT_S, first_task
    from agentrl.envs.sources import JsonlSource

    source = (
        cls.train_tasks(arguments.env_args, seed=arguments.seed)
        if arguments.prompt_data is None
        else JsonlSource(arguments.prompt_data)
    )
    if source is None:
        raise ConfigError(f"{arguments.env} brings no tasks of its own; give it --prompt-data")
    if isinstance(source, JsonlSource) and (note := source.check(ROWS)):
        sys.stdout.write(f"{note}\n")
    task = first_task(source)
    if task is None:
        raise ConfigError(f"{arguments.env} had no first task within {LIMIT_S:g} s")
    return task
