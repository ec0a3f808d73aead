"""`agentrl explain-flags SCRIPT`: what agentrl answers to each flag of a launch script."""

import argparse
import re
import shlex
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentrl.cli.explain_shell import to_set
from agentrl.cli.output import say, until_the_reader_leaves
from agentrl.config.env_vars import advice_on_environment
from agentrl.config.explained import Explained, explain
from agentrl.config.launch_script import PROGRAMS, Argument, LaunchScript, read_script
from agentrl.config.secrets import secret_names
from agentrl.errors import ConfigError

__all__ = ["ABOUT", "add_arguments", "explain_flags"]

ABOUT = """\
Reads a launch script in slime's style, runs nothing of it, and tells of each flag whether it works
here, is already so, is noted (accepted, and not needed or not used here), or is refused and what to
use instead; then the line to run, without what is refused. Flags may be given in place of a
script, behind `--`:

    agentrl explain-flags scripts/run-qwen3-4B.sh
    agentrl explain-flags -- --colocate --lr 1e-6

Words that only a run of the script can tell (`$BASE_DIR/data`) stay as they are. Model and data are
not looked at, and of this host only whether it has GPUs, where an answer depends on it: the line
that is printed with --dry-run does that.

exit codes:
  0    every flag is accepted, and every argument arrives
  1    a flag is refused, a line of the script is broken, or only a run can tell which flags a list
       of the script holds
  2    the command line is wrong, or the script cannot be read
"""
_HEAD = ("flag", "value", "answer", "what it means, or what to use")
_FLAG, _VALUE, _ANSWER = 34, 14, 12
#: Columns that have to be left for what a row says beside its flag.
_LEAST = 40
_SECRET = re.compile(r"(api|access)[-_]key|token$|secret|password", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the sub-command."""
    parser.add_argument("words", metavar="SCRIPT", nargs="*", help="Launch script, or -- FLAGS")
    parser.add_argument(
        "--program",
        choices=sorted(PROGRAMS.values()),
        help="Program that reads the flags [default: the script's]",
    )


def explain_flags(arguments: argparse.Namespace) -> int:
    """Print the answers; returns the exit code."""
    script = _script(arguments.words)
    program = arguments.program or script.program
    found = explain(script.arguments, program)
    with until_the_reader_leaves():
        say(_page(script, program, found))
    left_open = script.broken or _lists(found)
    return 1 if left_open or any(one.answer == "refused" for one in found) else 0


def _script(words: list[str]) -> LaunchScript:
    if not words:
        raise ConfigError("name a launch script, or give flags behind --")
    if words[0].startswith("--"):
        return LaunchScript(Path(), "train", tuple(map(Argument, words)))
    if len(words) > 1:
        raise ConfigError(f"{words[1]!r} is one word too many: name one script")
    return read_script(Path(words[0]))


def _page(script: LaunchScript, program: str, found: list[Explained]) -> Iterator[str]:
    yield from _row(*_HEAD)
    for one in found:
        yield from _row(one.flag or one.value, one.value if one.flag else "", one.answer, one.says)
    yield ""
    counts = Counter(one.answer for one in found)
    yield f"{len(found)} flags: " + ", ".join(f"{n} {answer}" for answer, n in counts.items())
    for title, lines in (("broken", script.broken), ("unknown", script.unknown)):
        yield from (f"{title}: {line}" for line in lines)
    yield from _environment(script, found)
    if lists := _lists(found):
        yield (
            f"not answered: the flags in {', '.join(lists)}; give what stands there behind "
            "`agentrl explain-flags --`"
        )
    yield ""
    left = [one for one in found if one.answer != "refused"]
    removed = f" (without what is refused: {counts['refused']})" if counts["refused"] else ""
    yield f"the line to run{removed}; with --dry-run it is checked with model and data:"
    yield from _to_set(script, left)
    yield ""
    yield " \\\n".join([f"python {program}.py", *(f"    {_line(one)}" for one in left)])


def _environment(script: LaunchScript, found: list[Explained]) -> Iterator[str]:
    """The variables that the script sets for its program, and that no --env-vars of it names."""
    words = [word.text for one in found if one.flag == "--env-vars" for word in one.values]
    given = {word.partition("=")[0] for word in words}
    left = {name: word for name, word in script.environment.items() if name not in given}
    if left:
        yield f"environment: the script sets {', '.join(left)}; the line to run does not:"
        yield from (f"    {line}" for line in advice_on_environment(left))


def _to_set(script: LaunchScript, left: list[Explained]) -> Iterator[str]:
    """What a shell needs to fill in what is unknown in the line."""
    shown = [one for one in left if not _is_hidden(one)]
    needs = [name for one in shown for word in one.words for name in word.needs]
    first = list(to_set(script, needs, [_variable(one.flag) for one in left if _is_hidden(one)]))
    if first:
        yield "a shell fills in what is unknown in it; one that does not have it is told first:"
        yield from (f"    {command}" for command in first)
    elif not all(word.known for one in shown for word in one.words):
        yield "(the shell that runs it fills in what is unknown in it)"


def _lists(found: list[Explained]) -> list[str]:
    """What may hold flags that are not known."""
    return [one.value for one in found if not one.flag and one.answer == "unknown"]


def _line(one: Explained) -> str:
    """A flag as a shell takes it; what only a run can tell stays for that shell to fill in, and so
    does a secret."""
    if _is_hidden(one):
        return f'{one.flag} "${{{_variable(one.flag)}}}"'
    return " ".join(word.text if not word.known else shlex.quote(word.text) for word in one.words)


def _is_hidden(one: Explained) -> bool:
    return bool(one.value) and _is_secret(one.flag)


def _variable(flag: str) -> str:
    """The variable that has the value of a secret."""
    return flag.strip("-").replace("-", "_").upper()


def _row(flag: str, value: str, answer: str, says: str) -> Iterable[str]:
    """A row of the table; on a narrow terminal what it says stands below its flag."""
    columns = ((flag, _FLAG), (_short(flag, value), _VALUE), (answer, _ANSWER))
    head = "".join(f"{text:<{width}}  " for text, width in columns)
    width = shutil.get_terminal_size((120, 24)).columns
    if width - len(head) < _LEAST:
        indent = " " * 4
        below = textwrap.TextWrapper(
            max(_LEAST, width - 1),
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )
        return [head.rstrip(), *below.wrap(says)]
    wrapped = textwrap.wrap(says, width - len(head), break_on_hyphens=False) or [""]
    return [head + wrapped[0], *(" " * len(head) + line for line in wrapped[1:])]


def _short(flag: str, value: str) -> str:
    """A value on one line; that of a secret is not shown."""
    if value and _is_secret(flag):
        return "(hidden)"
    value = " ".join(value.split())
    return value if len(value) <= _VALUE else f"{value[: _VALUE - 3]}..."


def _is_secret(flag: str) -> bool:
    ours = flag.strip("-").replace("-", "_").lower() in secret_names()
    return ours or _SECRET.search(flag) is not None
