"""A launch script in slime's style, read without running it: the words that it passes to train.py.

Arrays, variables, defaults, sums, functions and sourced files are followed. What only a run of the
script can know is left in the words as it was written (`$BASE_DIR/model`, `$(seq 16 8 256)`), so
that a shell that knows it can still fill it in, and is told with its line. A command that ends
before its arguments do, for a backslash is missing, is told too: a shell drops what follows.

Refused: a file that cannot be read, is no text or is too large, a script without train.py or
train_async.py or with two such commands, files that source each other in a circle.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from agentrl.config.script_environment import UnreadEnvironmentError, environment_of
from agentrl.config.script_file import MAX_BYTES, placed, text_of
from agentrl.config.shell import DECLARING, Command, commands
from agentrl.config.shell_values import Argument, plain
from agentrl.config.shell_variables import Variables
from agentrl.config.shell_words import NAME, Word
from agentrl.errors import ConfigError
from agentrl.paths import kind_of

__all__ = ["MAX_BYTES", "PROGRAMS", "Argument", "LaunchScript", "read_script"]

Program = Literal["train", "train_async"]
PROGRAMS: dict[str, Program] = {"train.py": "train", "train_async.py": "train_async"}
_MAX_DEPTH = 16
_MAX_FILES = 200
_MAX_COMMANDS = 100_000
#: Commands that may speak of the program and do not run it.
_OTHERS = frozenset({"echo", "printf", "ls", "cp", "cat", "test", "[", "[["})
#: What runs the program: its name stands before that of the program.
_RUNS = re.compile(r"(python|pypy)[\d.]*|torchrun|accelerate|deepspeed")
_ENDS = frozenset({"exit", "exec", "return"})


class LaunchScript(msgspec.Struct, frozen=True):
    """What a script passes. `unknown`: what only a run can tell; `broken`: what is wrong with the
    script itself. Lines of both name their file and line. `set_in`: the file that sets a variable
    last, by name; `environment`: what it sets in that of the program, by name, as words for
    --env-vars."""

    path: Path
    program: Program
    arguments: tuple[Argument, ...]
    unknown: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    set_in: dict[str, Path] = {}
    environment: dict[str, Argument] = {}

    @property
    def argv(self) -> list[str]:
        """The words alone."""
        return [argument.text for argument in self.arguments]


def read_script(path: Path) -> LaunchScript:
    """The command of a launch script. Raises ConfigError."""
    reader = _Reader(path)
    reader.read(path, [])
    reader.end()
    if not reader.found:
        raise ConfigError(f"{path} calls neither train.py nor train_async.py{reader.why_not()}")
    if len(reader.found) > 1:
        places = " and ".join(f"line {line}" for line, *_ in reader.found)
        raise ConfigError(f"{path} calls a program of training in {places}; keep one of them")
    _, program, arguments = reader.found[0]
    broken = tuple(dict.fromkeys(reader.broken))
    unknown = tuple(dict.fromkeys(reader.unknown))
    return LaunchScript(
        path, program, arguments, unknown, broken, reader.set_in, reader.environment
    )


class _Reader:
    """What a script does, command by command, and what was found on the way."""

    def __init__(self, path: Path) -> None:
        self.found: list[tuple[int, Program, tuple[Argument, ...]]] = []
        self.unknown: list[str] = []
        self.broken: list[str] = []
        self.environment: dict[str, Argument] = {}
        self._exported: dict[str, None] = {}
        self._variables = Variables(path)
        self._functions: dict[str, tuple[int, list[Command]]] = {}
        self._locals: list[dict[str, object]] = []
        self._ended = self._left = False
        self._unsure = self._steps = self._files = 0
        self._last: Command | None = None
        self._cwd: Path | None = Path.cwd()

    def read(self, path: Path, within: list[Path]) -> None:
        """Follow the commands of a file."""
        if path.resolve() in within:
            circle = " -> ".join(str(each) for each in [*within, path.resolve()])
            raise ConfigError(f"scripts source each other in a circle: {circle}")
        self._files += 1
        if len(within) == _MAX_DEPTH or self._files > _MAX_FILES:
            raise ConfigError(f"{path} is one file too many: it sources too many others")
        text, before = text_of(path), self._variables.here
        self._variables.here = path
        try:
            self._follow_all(commands(text), [*within, path.resolve()])
        except ConfigError as error:
            raise ConfigError(placed(path, str(error), self._variables.line)) from None
        finally:
            self._variables.here = before

    @property
    def set_in(self) -> dict[str, Path]:
        """The file that set a variable last."""
        return self._variables.set_in

    def end(self) -> None:
        """No command follows."""
        self._after_program(None)

    def why_not(self) -> str:
        """Why no program was found, where a part of the script was not followed."""
        for name, (line, body) in self._functions.items():
            if any("train" in word.raw for command in body for word in command.words):
                return f"; nothing calls the function {name} of line {line}"
        return f"; it ends in line {self._variables.line}" if self._ended else ""

    # ---- commands -----------------------------------------------------------------------------

    def _follow_all(self, found: Iterator[Command], within: list[Path]) -> None:
        for command in found:
            if self._ended or self._left:
                continue  # what follows is looked at for what nothing closes
            if command.function is None or self._locals:
                self._follow(command, within)
            else:
                self._define(*command.function, command)
        self._left = False

    def _define(self, name: str, line: int, command: Command) -> None:
        before = self._functions.get(name)
        if before is None or before[0] != line:
            self._functions[name] = (line, [])
        self._functions[name][1].append(command)

    def _follow(self, command: Command, within: list[Path]) -> None:
        self._steps += 1
        if self._steps > _MAX_COMMANDS:
            raise ConfigError(f"line {command.line}: more than {_MAX_COMMANDS} commands")
        self._after_program(command)
        variables = self._variables
        variables.line, variables.notes = command.line, []
        unsure = command.conditional or self._unsure > 0
        if not command.words:
            for assignment in command.assignments:
                self._look_at(assignment.items or ())
                variables.assign(assignment, conditional=unsure)
            self.unknown += variables.notes
            return
        if command.words[0].raw in DECLARING:
            self._declare(command, unsure=unsure)
            return
        words = [word for word in command.words if word.parts]
        arguments = [argument for word in words for argument in self._words_of(word)]
        if program := _program_of(arguments):
            self._run(command, program, arguments)
        variables.line = command.line
        texts = [argument.text if argument.known else "" for argument in arguments]
        if texts[:1] in (["command"], ["builtin"]):
            texts = texts[1:]
        self._act(command, texts, within, unsure=unsure)

    def _act(self, command: Command, texts: list[str], within: list[Path], *, unsure: bool) -> None:
        """What a command does to the script itself."""
        name = texts[0] if texts else command.words[0].raw
        if name in self._functions:
            self._call(name, within, unsure=unsure)
        elif name in ("source", ".") and len(command.words) > 1:
            self._source(command, within, unsure=unsure)
        elif name in _ENDS and (name != "exec" or len(texts) > 1):
            self._unsure += unsure and name == "return"
            self._left = self._left or (name == "return" and not unsure)
            self._ended = self._ended or (name != "return" and not unsure)
        elif name == "cd":
            folder = self._cwd and len(texts) == 2 and self._cwd / texts[1]
            self._cwd = folder if folder and folder.is_dir() and not unsure else None
        elif name == "eval":
            self._variables.lose_all(f"may be set by eval ({self._variables.place})")
        else:
            self._set_by_program(name, texts[1:], command, unsure=unsure)

    def _words_of(self, word: Word) -> list[Argument]:
        """The words that a shell makes of one; what is not known of them is noted."""
        found = self._variables.expand(word).arguments()
        self._variables.notes += [why for argument in found for why in argument.whys]
        return found

    def _run(self, command: Command, program: tuple[int, Program], found: list[Argument]) -> None:
        arguments = found[program[0] + 1 :]
        self.found.append((command.line, program[1], tuple(arguments)))
        self.unknown += self._variables.notes
        self._note_environment(command, program[0])
        if command.in_loop:
            self.unknown.append(
                f"{self._variables.here}:{command.line}: the program runs in a loop; these are "
                "the words of its first round"
            )
        self._last = command

    def _note_environment(self, command: Command, num_before: int) -> None:
        variables = self._variables
        exported = {name: variables.values.get(name) for name in self._exported}
        for each in command.assignments:
            text = variables.text_of(each.value)
            exported[each.name] = None if text is None else plain(text)
        words = (variables.expand(word) for word in command.words if word.parts)
        before = [value for fields in words for value in fields.values()][:num_before]
        try:
            self.environment = environment_of(exported, before)
        except UnreadEnvironmentError:
            place = f"{variables.here}:{command.line}"
            self.unknown.append(f"{place}: --runtime-env-json is not read: it is no JSON object")

    def _after_program(self, command: Command | None) -> None:
        """A command of arguments alone, behind the program's: a shell does not pass them."""
        ended, self._last = self._last, None
        if ended is None:
            return
        reason = "lacks its backslash"
        if ended.trailing:
            reason = "ends with a backslash and a blank, which continues nothing"
        elif ended.commented:
            reason = "has a comment, which ends the command as in a shell, its backslash included"
        place = f"{self._variables.here}:{ended.last_line}: this line {reason}"
        if command is None or not command.words or not _is_argument(command.words[0]):
            self.broken += [f"{place}: a shell passes the blank"] if ended.trailing else []
            return
        lost = sum(len(self._variables.expand(word).arguments()) for word in command.words)
        self.broken.append(f"{place}: {lost} arguments from line {command.line} on are lost")
        self._last = command

    def _look_at(self, items: tuple[Word, ...]) -> None:
        for item in items:
            if item.trailing:
                self.broken.append(
                    f"{self._variables.here}:{item.line}: this line ends with a backslash and a "
                    "blank, which the list then holds"
                )

    # ---- variables ----------------------------------------------------------------------------

    def _declare(self, command: Command, *, unsure: bool) -> None:
        """`export`, `declare` and the like."""
        variables, name = self._variables, command.words[0].raw
        texts = [variables.text_of(word) for word in command.words[1:]]
        flags = "".join(text for text in texts if text and text[0] in "-+")
        both = command.assignments
        ahead, assigned = both[: command.num_ahead], both[command.num_ahead :]
        if name == "export":
            names = [each.name for each in assigned]
            self._exported |= dict.fromkeys(
                [*names, *(t for t in texts if t and NAME.fullmatch(t))]
            )
        is_local = bool(self._locals) and name != "export" and name != "readonly"
        for assignment in assigned:
            if is_local and "g" not in flags:
                self._locals[-1].setdefault(assignment.name, variables.values.get(assignment.name))
            self._look_at(assignment.items or ())
            variables.assign(assignment, conditional=unsure)
            if re.search(r"[niAlu]", flags) and name not in ("export", "readonly"):
                variables.lose(assignment.name, f"is declared {flags} ({variables.place})")
        for text in texts:
            if text is None:
                variables.lose_all(f"may be set by {name} ({variables.place})")
            elif found := NAME.match(text):
                is_set = "=" in text
                if is_local and not is_set:
                    self._locals[-1].setdefault(text, variables.values.get(text))
                if is_local or is_set or re.search(r"[niAlu]", flags):
                    variables.lose(found[0], f"is set by {name} ({variables.place})")
        for each in ahead:  # whether it stays depends on the names behind
            variables.lose(each.name, f"stands ahead of {name} ({variables.place})")
        self.unknown += variables.notes

    def _set_by_program(
        self, name: str, texts: list[str], command: Command, *, unsure: bool
    ) -> None:
        """Builtins that set variables in other ways."""
        variables = self._variables
        if command.words[0].raw.startswith("((") or name == "let":
            variables.set_by_sum(" ".join([command.words[0].raw, *texts]))
            return
        if name == "for" and len(command.words) > 1 and command.words[1].raw.startswith("(("):
            variables.set_by_sum(command.words[1].raw)
            return
        if name == "getopts" or (name == "printf" and texts[:1] == ["-v"]):
            names = texts[1:2]
        elif name in ("for", "select"):
            names = texts[:1]
        elif name in ("read", "mapfile", "readarray", "unset"):
            names = texts or ["MAPFILE"]
        else:
            return
        for found in filter(None, (NAME.match(each) for each in names)):
            if name == "unset" and not unsure and found[0] == found.string:
                variables.values.pop(found[0], None)
            else:
                variables.lose(found[0], f"is set by {name} ({variables.place})")

    # ---- functions and files ------------------------------------------------------------------

    def _call(self, name: str, within: list[Path], *, unsure: bool) -> None:
        if len(self._locals) == _MAX_DEPTH:
            raise ConfigError(f"line {self._variables.line}: {name} calls itself without end")
        before = self._unsure
        kept: dict[str, object] = {}
        self._unsure += unsure
        self._locals.append(kept)
        self._follow_all(iter(self._functions[name][1]), within)
        self._locals.pop()
        self._unsure = before
        self._restore(kept)

    def _restore(self, kept: dict[str, object]) -> None:
        values = self._variables.values
        for name, value in kept.items():
            values.pop(name, None)
            if value is not None:
                values[name] = value  # type: ignore[assignment]

    def _source(self, command: Command, within: list[Path], *, unsure: bool) -> None:
        variables = self._variables
        text = variables.text_of(command.words[1])
        if text is None:
            self.unknown.append(
                f"{variables.place}: {command.words[1].raw} cannot be sourced: where it is, only a "
                "run can tell"
            )
            return
        kept: dict[str, object] = {
            each.name: variables.values.get(each.name) for each in command.assignments
        }
        place = variables.place
        for assignment in command.assignments:
            variables.assign(assignment, conditional=False)
        wanted, path = self._standing(text)
        if path is None:
            there = "there is no" if (kind := kind_of(wanted)) == "nothing" else f"{kind} is"
            (self.unknown if unsure else self.broken).append(
                f"{place}: {there} {text}, which it sources"
            )
            return
        if path != wanted:
            self.unknown.append(f"{place}: there is no {text}; {path} is read in its place")
        before = self._unsure
        self._unsure += unsure
        self.read(path, within)
        self._unsure = before
        self._restore(kept)

    def _standing(self, text: str) -> tuple[Path, Path | None]:
        """The file that a script sources, and what is read for it: a file of its name beside the
        script, or below a folder that holds the script; slime's scripts name theirs by where
        their container has them."""
        script = self._variables.script
        wanted = (self._cwd or script.absolute().parent) / text
        if kind_of(wanted) == "a file":
            return wanted, wanted
        beside = self._variables.here.absolute().parent / text
        if not Path(text).is_absolute() and kind_of(beside) == "a file":
            return wanted, beside
        names = wanted.resolve().parts[1:]
        for parent in script.resolve().parents:
            for first in range(1, len(names) - 1):
                if kind_of(path := parent.joinpath(*names[first:])) == "a file":
                    return wanted, path
        return wanted, None


def _program_of(arguments: list[Argument]) -> tuple[int, Program] | None:
    """Where the program stands among the words of a command, and which it is."""
    if arguments and arguments[0].text in _OTHERS:
        return None
    for index, argument in enumerate(arguments):
        before = [each.text.rpartition("/")[2] for each in arguments[:index]]
        runs = [each for each in before if _RUNS.fullmatch(each)]
        open_words = not all(each.known for each in arguments[:index])
        program = PROGRAMS.get(argument.text.rpartition("/")[2])
        called = "-c" not in before and (runs or open_words or not index)
        if program and called and " " not in argument.text:
            return index, program
    return None


def _is_argument(word: Word) -> bool:
    first = word.parts[0] if word.parts else None
    is_list = first is not None and first.kind == "variable" and first.text.endswith(("[@]", "[*]"))
    return is_list or word.text.startswith("--")
