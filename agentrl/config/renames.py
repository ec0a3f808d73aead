"""Flags of the table that have another name today: the new one is read in their place.

One that takes no value may stand for a flag with its value (`--recompute-activations` is
`--recompute-granularity selective`); turned off, that one is left out. A value too many or too few
is told under the name that somebody wrote; what is refused of a flag of today names that one too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from agentrl.config import answers
from agentrl.config.answers import Asked, FlagAnswer
from agentrl.errors import AgentRLError

__all__ = [
    "Renamed",
    "in_written_names",
    "read_renamed",
    "setting_of_today",
    "under_written_names",
    "written_names",
]


class Renamed(msgspec.Struct, frozen=True):
    """A command line under the names of today, what had another one, and what is wrong with it."""

    argv: list[str] = []
    asked: list[Asked] = []
    refused: list[str] = []


def read_renamed(argv: list[str]) -> Renamed:
    """`argv` under the names of today."""
    found = Renamed()
    index = 0
    while index < len(argv):
        word, index = argv[index], index + 1
        name, equals, value = word.partition("=")
        known = answers.row_of(name) if name.startswith("--") else None
        if known is None or not known[1].renamed:
            found.argv.append(word)
            continue
        flag, row = known
        follows = index < len(argv) and not argv[index].startswith("--")
        is_on = name.replace("_", "-") == flag
        if row.takes == 0 and (equals or follows):
            found.refused.append(answers.too_much(name, value if equals else argv[index]))
            index += int(not equals)
        elif row.takes != 0 and not equals and not follows:
            found.refused.append(f"{name} needs a value ({row.renamed} here)")
        else:
            found.argv.extend(_of_today(row, equals + value, is_on=is_on))
            found.asked.extend([Asked(flag, name)] if is_on else [])
    return found


def _of_today(row: FlagAnswer, value: str, *, is_on: bool) -> list[str]:
    if row.takes != 0:
        return [row.renamed + value]
    if is_on:
        return row.renamed.split()
    return [] if " " in row.renamed else [row.renamed.replace("--", "--no-", 1)]


def setting_of_today(row: FlagAnswer, value: Any) -> tuple[str, Any] | None:
    """The flag and the value of a renamed setting of a file, or None where it says what holds
    without it."""
    name, *values = row.renamed.split()
    if not values:
        return name, value
    return (name, values[0]) if value else None


def written_names(asked: Iterable[Asked]) -> dict[str, str]:
    """The names that somebody wrote, by those of today."""
    return {one.row.renamed: one.spelled for one in asked if one.row.renamed}


def in_written_names(lines: Iterable[str], written: Mapping[str, str]) -> list[str]:
    """`lines` with the name that somebody wrote before that of today."""
    return [_in_written_names(line, written) for line in lines]


def _in_written_names(line: str, written: Mapping[str, str]) -> str:
    for today, name in written.items():
        found = re.search(rf"(?<![\w-]){re.escape(today)}(?![\w-])", line)
        if found and name not in line:
            line = f"{line[: found.start()]}{name} ({today} here){line[found.end() :]}"
    return line


@contextmanager
def under_written_names(written: Mapping[str, str]) -> Iterator[None]:
    """What is refused within is told under the names that somebody wrote."""
    try:
        yield
    except AgentRLError as error:
        lines = in_written_names(str(error).splitlines(), written)
        if "\n".join(lines) == str(error):
            raise
        raise type(error)("\n".join(lines)) from error
