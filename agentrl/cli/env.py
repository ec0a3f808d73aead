"""`agentrl env`: look for environments, check one, play an episode of it, begin a new one."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.cli.parser import seconds
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig
    from agentrl.envs.check.first_prompts import FirstPrompts
    from agentrl.envs.check.subject import Subject
    from agentrl.envs.env import Env
    from agentrl.types import Task

__all__ = ["ABOUT", "add_commands"]

ABOUT = """\
Environments: those that are known here, what one promises and keeps, an episode of it by hand or by
a served model, and a new one to begin with. ENV is a name of the list, pkg.module:Class, or
path/to/file.py.

A check plays whole episodes, and calls every tool with arguments made from its schema, in earnest.
After --limit-s it tries nothing more, and says what it has left out.

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
    listing = commands.add_parser("list", help="List names of environments, and who brings each")
    listing.set_defaults(command=_list)
    for name, command, brief in (
        ("check", _check, "Try what an Env or a rollout promises"),
        ("play", _play, "Play an episode: you are the policy, or a served model is"),
    ):
        made = commands.add_parser(name, help=brief)
        made.add_argument("env", metavar="ENV", help="Name, pkg.module:Class or path/to/file.py")
        made.add_argument(
            "--env-args", metavar="JSON", type=_object, default={}, help="Arguments of the Env"
        )
        made.add_argument("--prompt-data", metavar="FILE", help="Tasks, when the Env brings none")
        made.add_argument(
            "--seed", metavar="N", type=int, default=0, help="Seed of the first episode"
        )
        made.add_argument(
            "--allow-unsafe-sandbox",
            action="store_true",
            help="Run the model's code with your rights on files, where bubblewrap is missing",
        )
        made.set_defaults(command=command)
        if command is _play:
            _add_policy(made)
        else:
            _add_limit(made)
            _add_model(made)
    new = commands.add_parser("new", help="Write a small Env and its tasks, to be changed")
    new.add_argument(
        "name", metavar="NAME", help="Name of the file NAME.py, and of the class in it"
    )
    new.set_defaults(command=_new)


def _add_policy(parser: argparse.ArgumentParser) -> None:
    from agentrl.config.run import RunConfig

    usual = RunConfig()
    served = parser.add_argument_group("a served model in your place")
    served.add_argument("--url", metavar="URL", help="Address of an SGLang server, or of a router")
    served.add_argument(
        "--model",
        metavar="DIR",
        help="Folder of the model's tokenizer (default: as the server says)",
    )
    words = "How turns are written as tokens (default: as the model's files show)"
    served.add_argument("--chat-format", metavar="NAME", help=words)
    served.add_argument(
        "--chat-template", metavar="own|FILE", help="Chat template in the place of a format"
    )
    warm = usual.rollout_temperature
    words = "Sampling temperature (default: %(default)g)"
    served.add_argument("--temperature", metavar="T", type=float, default=warm, help=words)


def _add_limit(parser: argparse.ArgumentParser) -> None:
    from agentrl.envs.check.share import CHECK_S

    words = (
        "Seconds after which nothing more is tried; what was left out is said "
        "(default: %(default)g)"
    )
    parser.add_argument("--limit-s", metavar="SECONDS", type=seconds, default=CHECK_S, help=words)


def _add_model(parser: argparse.ArgumentParser) -> None:
    words = "Model that is to have room for the first prompt (default: it is not compared)"
    parser.add_argument("--hf-checkpoint", metavar="DIR", help=words)


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
    from agentrl.cli.check import check

    with _subject(arguments) as subject:
        return check(subject, arguments.limit_s, _sized(arguments))


def _sized(arguments: argparse.Namespace) -> "FirstPrompts | None":
    """What compares the first prompt with the model of --hf-checkpoint. Raises ConfigError where
    that is none."""
    if arguments.hf_checkpoint is None:
        return None
    import msgspec

    from agentrl.envs.check.first_prompts import open_first_prompts

    config = msgspec.structs.replace(_as_run(arguments), hf_checkpoint=arguments.hf_checkpoint)
    return open_first_prompts(config)


def _play(arguments: argparse.Namespace) -> int:
    import anyio

    with _subject(arguments) as subject:
        if arguments.url is None:
            from agentrl.envs.by_hand import play

            anyio.run(play, subject, sys.stdin, sys.stdout)
            return 0
        from agentrl.cli.served import Policy, play_served
        from agentrl.tokens.templates.load import OwnTemplate

        template = arguments.chat_template
        written = arguments.chat_format if template is None else OwnTemplate(template)
        policy = Policy(arguments.url, arguments.model, written, arguments.temperature)
        report = anyio.run(play_served, subject, policy, sys.stdout)
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
def _subject(arguments: argparse.Namespace) -> "Iterator[Subject]":
    """What an Env is tried on: the first task, and its services, which end with this."""
    from agentrl.cli.services import running
    from agentrl.envs.check.preflight import services_of
    from agentrl.envs.check.signatures import check_class
    from agentrl.envs.check.subject import Subject
    from agentrl.envs.env import EnvContext
    from agentrl.envs.registry import load_env

    cls = load_env(arguments.env)
    check_class(cls)
    if arguments.command is _play:
        _refuse_rollout(cls)
    config = _as_run(arguments)
    task = _first_task(cls, config)
    with running(services_of(config, cls), START_S) as services:
        context = EnvContext(services, allow_unsafe_sandbox=arguments.allow_unsafe_sandbox)
        yield Subject(cls, arguments.env_args, task, context, arguments.seed)


def _as_run(arguments: argparse.Namespace) -> "RunConfig":
    """What a run of this Env would be told of it."""
    from agentrl.config.run import RunConfig

    return RunConfig(
        env=arguments.env,
        env_args=arguments.env_args,
        prompt_data=arguments.prompt_data,
        rollout_seed=arguments.seed,
        rollout_shuffle=False,
    )


def _first_task(cls: "type[Env]", config: "RunConfig") -> "Task":
    """The first task, where its evaluation sets are what they should be too."""
    from agentrl.envs.check.dry_reset import LIMIT_S, first_task
    from agentrl.envs.check.preflight import check_eval_sets, source_of
    from agentrl.envs.check.rows import check_rows
    from agentrl.envs.travel import arrived

    source = source_of(config, cls)
    for note in [*check_eval_sets(config, cls), *check_rows(source)]:
        sys.stdout.write(f"{note}\n")
    task = first_task(source)
    if task is None:
        raise ConfigError(f"{config.env} had no first task within {LIMIT_S:g} s")
    task, changed = arrived(task)
    if changed:
        sys.stdout.write(f"{changed}\n")
    return task
