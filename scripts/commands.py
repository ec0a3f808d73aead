"""What each sub-command of `agentrl` takes, read from its parser, for docs/reference.md."""

import argparse
import re
import textwrap
from collections.abc import Iterator

from agentrl.cli.main import made_parser

__all__ = ["commands"]

_WIDTH = 100
_INDENT = 30


def commands() -> Iterator[str]:
    """A chapter for each: what it does, and its arguments as `--help` has them."""
    for parser, brief in _leaves(made_parser()):
        yield f"### {parser.prog}"
        yield ""
        yield _about(parser) or f"{brief}."
        yield ""
        if taken := [action for action in parser._actions if action.dest != "help"]:
            yield "```text"
            for action in taken:
                yield from _argument(parser, action)
            yield "```"
            yield ""


def _leaves(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """The parsers of the commands that have no commands below them, and their lines of help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            briefs = {one.dest: one.help or "" for one in action._choices_actions}
            for name, below in action.choices.items():
                found = list(_leaves(below))
                yield from found or [(below, briefs[name])]


def _about(parser: argparse.ArgumentParser) -> str:
    """The first paragraph of its help."""
    return " ".join((parser.description or "").partition("\n\n")[0].split())


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> Iterator[str]:
    formatter = argparse.HelpFormatter(parser.prog, width=_WIDTH)
    value = "" if action.nargs == 0 else _value(action)
    name = f"{action.option_strings[-1]} {value}".strip() if action.option_strings else value
    # `_expand_help` writes the default where the text asks for it.
    text = formatter._expand_help(action) if action.help else ""
    lines = textwrap.wrap(re.sub(r"\s+", " ", text), _WIDTH - _INDENT, break_on_hyphens=False)
    first = f"  {name}"
    if lines and len(first) + 2 <= _INDENT:
        first = first.ljust(_INDENT) + lines.pop(0)
    yield first
    yield from (" " * _INDENT + line for line in lines)


def _value(action: argparse.Action) -> str:
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
    named = action.metavar or choices or action.dest.upper()
    shown = named if isinstance(named, str) else " ".join(named)
    many = " ..." if action.nargs in ("*", "+", argparse.REMAINDER) else ""
    return f"{shown}{many}"
