"""What agentrl answers to each flag of a command line, one by one.

The answers are those that the programs give: a flag is read as they read it, alone, and by rule
where its answer depends on the others, on a preset or a file of settings that is named, or on
whether this host has GPUs.
A value that no run takes is refused. What flags cannot do together, and what a model or this host
cannot do, `--dry-run` tells. A value that only a run of a script can tell is not judged, nor is a
flag whose answer depends on it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentrl.config import answers
from agentrl.config.agreements import settle
from agentrl.config.command_line import Program, num_values, read_flags
from agentrl.config.fields import Field, own_fields, synchronous_values
from agentrl.config.files import read_file
from agentrl.config.given import GivenFlags
from agentrl.config.launch_script import Argument
from agentrl.config.refused import about_families
from agentrl.config.resolve import RANKS, merged, ranks_here, said_in, under_values
from agentrl.config.single_values import about_values
from agentrl.errors import ConfigError

__all__ = ["Explained", "explain"]

Answer = Literal["works", "already so", "noted", "refused", "unknown"]
_SO = "already so: "
_NOT = ("not needed: ", "not used: ")
_FILE = "--config"
_PASSED_ON = {
    "megatron": "Read by the learner, under Megatron's own name",
    "sglang": "Passed to the engines (SGLang)",
    "router": "Passed to the router (sglang-router)",
}


class Explained(msgspec.Struct, frozen=True):
    """One flag with its words. `noted`: accepted, and not needed or not used here. `says`: what it
    means, why it is already so or noted, or what to use."""

    flag: str
    values: tuple[Argument, ...]
    answer: Answer
    says: str

    @property
    def words(self) -> tuple[Argument, ...]:
        """As they stand on the command line."""
        return (Argument(self.flag), *self.values) if self.flag else self.values

    @property
    def value(self) -> str:
        """What follows the flag."""
        return " ".join(value.text for value in self.values)


class _UnreadError(Exception):
    """An answer depends on a value that only a run of the script can tell; its flag."""


class _Known(Mapping[str, Any]):
    """The values of a run, for the rules. Raises _UnreadError where one is asked for that `unread`
    has, with its flag; or that is not there, and may stand in a file that nobody could read
    (`file`: the flag that names it)."""

    def __init__(self, values: Mapping[str, Any], unread: Mapping[str, str], file: str) -> None:
        self._values, self._unread, self._file = values, unread, file

    def __getitem__(self, name: str) -> Any:
        if name in self._unread:
            raise _UnreadError(self._unread[name])
        if self._file and name not in self._values:
            raise _UnreadError(self._file)
        if name == RANKS and (num := ranks_here(self)) is not None:
            return num
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        if self._file and name not in self._values and name not in self._unread:
            raise _UnreadError(self._file)
        return name in self._values or name in self._unread

    def __iter__(self) -> Iterator[str]:
        return iter({**self._values, **self._unread})

    def __len__(self) -> int:
        return len({**self._values, **self._unread})


def explain(arguments: Iterable[Argument], program: Program = "train_async") -> list[Explained]:
    """The answer of `program` to each flag, in their order."""
    groups = list(_groups(arguments))
    whole, known = _whole(groups, program)
    last = {flag: index for index, (flag, _) in enumerate(groups)}
    return [
        _repeated(found) if last[flag] != index else found
        for index, (flag, values) in enumerate(groups)
        for found in [_explained(flag, values, whole, known)]
    ]


def _whole(
    groups: list[tuple[str, tuple[Argument, ...]]], program: Program
) -> tuple[GivenFlags, _Known]:
    """All that is given, and the values that a run has of it: those of a file of --config and of a
    preset under them."""
    whole = GivenFlags(values=dict(synchronous_values()) if program == "train" else {})
    unread: dict[str, str] = {}
    file: GivenFlags | None = GivenFlags()
    for flag, values in groups:
        are_known = all(value.known for value in values)
        if flag == _FILE:
            file = _of_file(_read(flag, values).config) if are_known else None
        elif are_known:
            read = _read(flag, values)
            whole.values.update(read.values)
            whole.said.update(read.said)
            unread = {name: text for name, text in unread.items() if name not in read.values}
        elif (field := _field(flag)) is not None:
            unread[field.name] = whole.said[field.name] = flag
    if file is not None:
        whole = GivenFlags(
            values=merged(file.values, whole.values), said=said_in(file.values, "") | whole.said
        )
    under = {}
    if "preset" in whole.values:
        with suppress(ConfigError):  # a preset that is none is told as such
            under = under_values(whole.values)[0]
    return whole, _Known({**under, **whole.values}, unread, "" if file is not None else _FILE)


def _of_file(path: str | None) -> GivenFlags | None:
    """What a file of settings says; None for one that is not here, or is none."""
    with suppress(ConfigError):
        return read_file(Path(path or ""))
    return None


def _groups(arguments: Iterable[Argument]) -> Iterator[tuple[str, tuple[Argument, ...]]]:
    """Each flag with the words up to the next. A list that nobody knows stands for itself, and so
    does a word behind a flag that has all its values: it may hold a flag, or nothing."""
    flag = ""
    values: list[Argument] = []
    for argument in arguments:
        is_list = argument.many or (not argument.known and _is_complete(flag, values))
        if argument.text.startswith("--") or is_list:
            if flag or values:
                yield flag, tuple(values)
            flag, equals, value = ("", "", argument) if is_list else _parted(argument)
            values = [value] if is_list or equals else []
        else:
            values.append(argument)
    if flag or values:
        yield flag, tuple(values)


def _is_complete(flag: str, values: list[Argument]) -> bool:
    """Whether a flag takes no further word."""
    num = num_values(flag) if flag else None
    return num is not None and len(values) >= num


def _parted(argument: Argument) -> tuple[str, str, Argument]:
    flag, equals, value = argument.text.partition("=")
    return flag, equals, msgspec.structs.replace(argument, text=value)


def _read(flag: str, values: tuple[Argument, ...]) -> GivenFlags:
    return read_flags([flag, *(value.text for value in values)])


def _explained(
    flag: str, values: tuple[Argument, ...], whole: GivenFlags, known: _Known
) -> Explained:
    if not flag:
        return _without_flag(values)
    read = _read(flag, values)
    guessed = [value.text for value in values if not value.known]
    if guessed and not _is_refused(flag):
        return _unread(flag, values, guessed, asked=bool(read.asked))
    try:
        settled = settle(read.asked, known, whole.said)
    except _UnreadError as error:
        return _unread(flag, values, [str(error)], asked=True)
    refused = [
        *read.refused,
        *settled.refused,
        *about_families(read.values),
        *about_values(read.values, whole.values),
    ]
    if refused:
        says = " ".join(_bare(line, flag, values) for line in refused)
        return Explained(flag, values, "refused", says)
    notes = [_bare(line, flag, values) for line in (*settled.notes, *answers.notes(read.asked))]
    told = " ".join(note.removeprefix(_SO) for note in notes)
    if not read.values and notes:
        is_noted = any(note.startswith(_NOT) for note in notes)
        return Explained(flag, values, "noted" if is_noted else "already so", told)
    return Explained(flag, values, "works", " ".join(filter(None, (told, _meaning(flag, read)))))


def _bare(line: str, flag: str, values: tuple[Argument, ...]) -> str:
    """A line without the flag that it begins with: the table shows that."""
    whole = " ".join([flag, *(value.text for value in values)])
    return line.removeprefix(f"{whole}: ").removeprefix(f"{flag}: ")


def _without_flag(values: tuple[Argument, ...]) -> Explained:
    text = " ".join(value.text for value in values)
    if all(value.known for value in values):
        return Explained("", values, "refused", f"{text}: these words follow no flag")
    return Explained("", values, "unknown", "only a run of the script can tell what it holds")


def _is_refused(flag: str) -> bool:
    """Whether a flag is refused with any value."""
    found = answers.row_of(flag)
    return found is not None and found[1].state == "refused"


def _unread(
    flag: str, values: tuple[Argument, ...], guessed: list[str], *, asked: bool
) -> Explained:
    """A flag whose value nobody knows yet: its name is judged, and no value of one that is already
    so for some values."""
    alone = _read(flag, ())
    if alone.refused and "unknown flag" in alone.refused[0]:
        return Explained(flag, values, "refused", _bare(alone.refused[0], flag, values))
    found = answers.row_of(flag)
    says = found[1].says if asked and found else _meaning(flag, GivenFlags())
    not_judged = f"{', '.join(guessed)} is not judged"
    answer: Answer = "unknown" if asked else "works"
    return Explained(flag, values, answer, "; ".join(filter(None, (says, not_judged))))


def _meaning(flag: str, read: GivenFlags) -> str:
    found = answers.row_of(flag)
    field = _field(flag)
    if found is not None and found[1].state == "works" and (found[1].says or found[1].differs):
        return "; ".join(filter(None, (found[1].says, found[1].differs)))
    if field is not None:
        return field.help
    return next((text for family, text in _PASSED_ON.items() if family in read.values), "")


def _field(flag: str) -> Field | None:
    return own_fields().get(flag.removeprefix("--").removeprefix("no-").replace("-", "_"))


def _repeated(found: Explained) -> Explained:
    field = own_fields().get(found.flag.removeprefix("--").replace("-", "_"))
    if found.answer in ("refused", "unknown") or (field is not None and field.kind == "list"):
        return found
    return msgspec.structs.replace(found, says="given again further on, and the last one counts")
