"""`agentrl check-hook`: which hooks there are, and one of the user's tried in seconds."""

import argparse
import sys
import textwrap
from collections.abc import Iterator

from agentrl.cli.hooks.table import ELSEWHERE, HOOKS, Hook
from agentrl.cli.output import say
from agentrl.cli.parser import Parser, seconds
from agentrl.config.answers import row_of
from agentrl.config.explained import explain
from agentrl.config.launch_script import Argument
from agentrl.errors import ConfigError
from agentrl.nearest import nearest_flag
from agentrl.visible import visible

__all__ = ["ABOUT", "add_arguments", "check_hook"]

ABOUT = """\
Tries a function that you have written for a flag, without a run. NAME is the flag without its
dashes, PATH what it takes: path/to/file.py[:name], pkg.module:name, or a name that a package
announces. It is loaded, called and looked at by the code of a run, in a process of its own, on a
small task or a small lease. What follows are flags of a run, which it may read:

    agentrl check-hook
    agentrl check-hook custom-rm-path mine.py:reward
    agentrl check-hook custom-rm-path mine.py:reward --prompt-data rows.jsonl --reward-key score
    agentrl check-hook group-rm mine.py:rank --timeout 120

Without NAME it lists the hooks, without PATH it describes one; docs/hooks.md has examples.

exit codes:
  0    a run would take it
  2    the command line is wrong, or a run would refuse it before anything starts
  65   it raised, hung, ended its process or gave what it may not: its episodes would be lost,
       or the run would end
  70   what it asks is away, so nothing is known of it
"""
#: Seconds that it has, to be loaded as well.
LIMIT_S = 60.0


def add_arguments(parser: Parser) -> None:
    """The flags of the sub-command."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="Name of a flag, without its dashes"
    )
    parser.add_argument("path", metavar="PATH", nargs="?", help="What the flag takes")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=LIMIT_S,
        help="Seconds after which the function is ended, and told with where it stands "
        "(default: %(default)g)",
    )
    parser.passes_on = "flags"


def check_hook(arguments: argparse.Namespace) -> int:
    """List, describe or try; returns the exit code."""
    if arguments.name is None:
        say(line for hook in HOOKS.values() for line in [*_described(hook), ""])
        say(f"{name}: {line}" for name, line in ELSEWHERE.items())
        return 0
    hook = _hook(arguments.name, arguments.path or "PATH")
    if arguments.path is None:
        say(_described(hook))
        return 0
    from agentrl.cli.hooks.apart import try_hook

    tried = try_hook(hook, arguments.path, arguments.flags, arguments.timeout)
    sys.stderr.write(visible(tried.printed))
    say(tried.lines)
    if tried.error:
        sys.stderr.write(f"agentrl: {visible(tried.error)}\n")
        return tried.exit_code
    say([f"ok: a run takes {' '.join(hook.argv)} {arguments.path}"])
    return 0


def _hook(name: str, path: str) -> Hook:
    """The hook of a name. Raises ConfigError with what to do instead."""
    name = name.removeprefix("--")
    if (hook := HOOKS.get(name)) is not None:
        return hook
    if (line := ELSEWHERE.get(name)) is not None:
        raise ConfigError(f"{name} has a check of its own: {line.replace('PATH', path)}")
    if row_of(name) is not None:
        (said,) = explain([Argument(f"--{name}"), Argument(path)])
        raise ConfigError(f"--{name} is no hook here ({said.answer}): {said.says}")
    known = nearest_flag(name, HOOKS) or f"; there are {', '.join(HOOKS)}"
    raise ConfigError(f"there is no hook {name!r}{known}")


def _described(hook: Hook) -> Iterator[str]:
    yield f"{hook.name}  ({' '.join(hook.argv)} PATH)"
    for signature in hook.its_kind().accepts:
        whose = "slime's" if signature.is_slimes else "ours"
        yield from _row(whose, hook.written(signature))
    if hook.also:
        yield from _row("taken", hook.also)
    yield from _row("called", hook.called)
    yield from _row("returns", hook.returns)


def _row(head: str, text: str) -> list[str]:
    first, rest = f"    {head:<8} ", " " * 13
    return textwrap.wrap(text, 100, initial_indent=first, subsequent_indent=rest)
