"""The variables of a launch script, and the words that its own words become by them.

Followed: `$X`, `${X}`, `${X[0]}`, lists, the defaults of `${X:-word}` and its like, `$(( ))`, and
the commands by which a script asks where it lies. A variable that this environment has counts as
known to a run only, whatever it holds. Anything else stays as it was written, with its line and the
reason.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentrl.config.shell import Assignment, CommandScanner, commands
from agentrl.config.shell_values import (
    MAX_CHARACTERS,
    Array,
    Fields,
    ShellPiece,
    Unset,
    Value,
    evaluated,
    plain,
    whole,
)
from agentrl.config.shell_words import NAME, Word, WordPart
from agentrl.errors import ConfigError

__all__ = ["OF_THE_SHELL", "Variables"]

_PARAMETER = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]*|\d+|[@*#?$!-])(?:\[([^\]]*)\])?(:?[-=+])?(.*)", re.DOTALL
)
_LIST = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[([@*])\]|()([@*])")
_ITEM_QUOTED = r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'"""
#: `[KEY]=`: a list that has one is keyed; `[0]*3` is a word like any other.
_KEYED = re.compile(rf"\[(?:{_ITEM_QUOTED}|\[[^\]]*\]|[^\[\]\"'\\])+\]\+?=", re.DOTALL)
#: A pattern of file names that a shell takes as it stands, once its variables are filled in.
_PATTERN = re.compile(r"[\w./:,=@%+*?\[\]-]+", re.ASCII)
_IN_SUM = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)|\b([A-Za-z_]\w*)", re.ASCII)
#: What a shell sets by itself.
_NAMES_OF_THE_SHELL = """
BASHPID BASH_ARGC BASH_ARGV BASH_COMMAND BASH_LINENO BASH_REMATCH BASH_SUBSHELL
BASH_VERSION COLUMNS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HOSTNAME
HOSTTYPE LINENO LINES MACHTYPE OLDPWD OPTARG OPTIND OSTYPE PIPESTATUS PPID PS4 PWD RANDOM
REPLY SECONDS SHELLOPTS SHLVL SRANDOM UID _
"""
OF_THE_SHELL = frozenset(_NAMES_OF_THE_SHELL.split())
_MAX_ITEMS = 10_000
_OUTSIDE = "comes from outside of the script"
_Variable = Value | Array | Unset


class Variables:
    """The variables so far. `place`: the file and line that is read; `here`, `script`: the file
    that is read, and the one that was begun with; `set_in`: the file that set a variable last."""

    def __init__(self, script: Path) -> None:
        self.script = self.here = script
        self.line = 1
        self.values: dict[str, _Variable] = {}
        self.set_in: dict[str, Path] = {}
        self.notes: list[str] = []
        self.outside = _OUTSIDE
        self.splits = ""  # why values do not fall apart at blanks

    @property
    def place(self) -> str:
        """The file and line that is read."""
        return f"{self.here}:{self.line}"

    # ---- setting ------------------------------------------------------------------------------

    def assign(self, assignment: Assignment, *, conditional: bool) -> None:
        """Follow an assignment."""
        name, self.line = assignment.name, assignment.line
        keyed = assignment.items and any(_KEYED.match(item.raw) for item in assignment.items)
        before = self.values.get(name)
        if name == "IFS":
            self.splits = f"is parted by IFS ({self.place})"
        if conditional:
            self.lose(name, f"is set under a condition ({self.place})")
        elif assignment.index is not None or keyed:
            self._assign_item(assignment, before, keyed=bool(keyed))
        elif assignment.items is not None:
            self._assign_list(assignment, assignment.items, before)
        elif isinstance(before, Unset) and assignment.adds:
            return
        else:
            value = self._joined(self._parts(assignment.value))
            if isinstance(before, Array):
                first = before.items[0] if assignment.adds and before.items else ()
                self.store(name, Array((self._fused(first, value), *before.items[1:])))
            elif before is not None and assignment.adds and not isinstance(before, Unset):
                self.store(name, self._fused(before, value))
            elif before is None and assignment.adds and name in os.environ:
                self.lose(name, f"is added to what this environment has ({self.place})")
            else:
                self.store(name, value)

    def _assign_list(
        self, assignment: Assignment, items: tuple[Word, ...], before: _Variable | None
    ) -> None:
        if isinstance(before, Unset) and assignment.adds:
            return
        old = before.items if isinstance(before, Array) else () if before is None else (before,)
        new = [value for item in items for value in self.expand(item).values()]
        kept = tuple(value for value in old if not isinstance(value, Unset))
        self.store(assignment.name, Array((*(kept if assignment.adds else ()), *new)))

    def _assign_item(
        self, assignment: Assignment, before: _Variable | None, *, keyed: bool
    ) -> None:
        items = list(before.items) if isinstance(before, Array) else [] if before is None else None
        index = assignment.index or ""
        if keyed or items is None or not re.fullmatch(r"0|[1-9]\d{0,4}", index):
            self.lose(assignment.name, f"has keys that only a run can tell ({self.place})")
        elif int(index) > len(items):
            self.lose(assignment.name, f"has gaps ({self.place})")
        else:
            value = self._joined(self._parts(assignment.value))
            old = items[int(index)] if int(index) < len(items) and assignment.adds else ()
            items[int(index) :] = [self._fused(old, value), *items[int(index) + 1 :]]
            self.store(assignment.name, Array(tuple(items)))

    def store(self, name: str, value: _Variable) -> None:
        """Set a variable. Raises ConfigError for one that is too large."""
        items = value.items if isinstance(value, Array) else ()
        values = (value,) if isinstance(value, tuple) else items
        size = sum(1 + sum(len(piece.text) for piece in pieces) for pieces in values)
        if size > MAX_CHARACTERS or len(items) > _MAX_ITEMS:
            raise ConfigError(
                f"line {self.line}: {name} has more than {MAX_CHARACTERS} characters or "
                f"{_MAX_ITEMS} items"
            )
        self.values[name], self.set_in[name] = value, self.here

    def lose(self, name: str, why: str) -> None:
        """From here on only a run can tell a variable."""
        self.values[name], self.set_in[name] = Unset(why), self.here

    def lose_all(self, why: str) -> None:
        """From here on only a run can tell any variable."""
        self.outside = why
        for name in self.values:
            self.lose(name, why)

    # ---- words --------------------------------------------------------------------------------

    def expand(self, word: Word) -> Fields:
        """The words that a shell makes of one."""
        self.line = word.line
        fields = Fields()
        why = word.spreads or ("begins in a home folder" if word.has_home else "")
        if why:
            filled = self.text_of(word) or ""
            raw = filled if _PATTERN.fullmatch(filled) else word.raw
            fields.add(self._source(raw, why), quoted=True)
            return fields
        for part in word.parts:
            self._add(fields, part)
        return fields

    def text_of(self, word: Word) -> str | None:
        """A word that does not fall apart; None where it is not known."""
        self.line = word.line
        return whole(self._joined(self._parts(word)))

    def _add(self, fields: Fields, part: WordPart) -> None:
        if part.kind == "text":
            fields.add(plain(part.text), quoted=True)
            return
        if part.kind == "variable" and (listed := _LIST.fullmatch(part.text)):
            self._add_list(fields, part, listed[1], listed[2])
            return
        for value, quoted in self._of(part):
            if not quoted and self.splits and any(piece.known for piece in value):
                value = self._source(part.raw, self.splits)
            fields.add(value, quoted=quoted)

    def _add_list(self, fields: Fields, part: WordPart, name: str, sign: str) -> None:
        value = self.values.get(name)
        if not name or isinstance(value, Unset) or (self.splits and not part.quoted):
            why = value.why if isinstance(value, Unset) else self.splits or "is known to a run only"
            fields.add(self._source(part.raw, why, many=True), quoted=part.quoted)
            return
        if value is None:
            if name in os.environ or self.outside != _OUTSIDE:
                fields.add(self._source(part.raw, self.outside, many=True), quoted=part.quoted)
                return
            self.notes.append(f"{self.place}: {part.raw} is never set: it gives nothing")
        items = value.items if isinstance(value, Array) else () if value is None else (value,)
        if sign == "*" and part.quoted:
            fields.add(self._spaced(items, part.raw), quoted=True)
            return
        for index, item in enumerate(items):
            if index:
                fields.part()
            fields.add(item, quoted=part.quoted)

    def _spaced(self, items: Iterable[Value], raw: str) -> Value:
        if self.splits:
            return self._source(raw, self.splits)
        spaced = [piece for item in items for piece in (ShellPiece(" "), *item)]
        return tuple(spaced[1:])

    def _parts(self, word: Word) -> Iterator[tuple[Value, bool]]:
        """The values of a word that does not fall apart."""
        if word.has_home:
            yield self._source(word.raw, "begins in a home folder"), True
            return
        for part in word.parts:
            yield from self._of(part)

    def _joined(self, values: Iterable[tuple[Value, bool]]) -> Value:
        return tuple(piece for value, _ in values for piece in value)

    def _fused(self, before: Value, value: Value) -> Value:
        return (*before, *value)

    def _of(self, part: WordPart) -> list[tuple[Value, bool]]:
        """What a part stands for, each piece with whether it was quoted."""
        if part.kind == "text":
            return [(plain(part.text), part.quoted)]
        if part.kind == "variable":
            return self._parameter(part)
        if part.kind == "sum":
            return [(self._sum(part), part.quoted)]
        if part.kind == "other":
            return [
                (
                    (
                        ShellPiece(
                            part.raw, False, f"{self.place}: {part.raw} {part.text}", bare=True
                        ),
                    ),
                    True,
                )
            ]
        folder = self._folder(part.text)
        if folder is None:
            return [(self._source(part.raw, "is known to a run only"), part.quoted)]
        return [(plain(folder), part.quoted)]

    def _source(self, raw: str, why: str, *, many: bool = False) -> Value:
        """What only a shell can tell."""
        needed = dict.fromkeys(
            found
            for found in re.findall(r"\$\{?[#!]?([A-Za-z_]\w*)", raw, re.ASCII)
            if found in self.values and not re.fullmatch(rf"\$\{{?{found}(\[[@*]\])?\}}?", raw)
        )
        needs = f"; it needs {', '.join(needed)} of the script" if needed else ""
        return (ShellPiece(raw, False, f"{self.place}: {raw} {why}{needs}", many),)

    # ---- parameters ---------------------------------------------------------------------------

    def _parameter(self, part: WordPart) -> list[tuple[Value, bool]]:
        found = _PARAMETER.fullmatch(part.text)
        if found is None or (found[4] and not found[3]):
            return [(self._source(part.raw, "is known to a run only"), part.quoted)]
        name, index, sign, text = found.groups()
        if index in ("@", "*") and not sign and not isinstance(self.values.get(name), Unset):
            value = self.values.get(name)
            items = value.items if isinstance(value, Array) else (value,) if value else ()
            spaced = tuple(item for item in items if not isinstance(item, Unset))
            return [(self._spaced(spaced, part.raw), part.quoted)]
        value = self._found(name, index)
        if sign:
            return self._alternative(part, name, value, sign, text)
        if value is None:
            value = Unset(self.outside)
        if isinstance(value, Unset):
            return [(self._source(part.raw, value.why), part.quoted)]
        return [(value, part.quoted)]

    def _found(self, name: str, index: str | None) -> Value | Unset | None:
        """A variable, or an item of it; None where the script has not set it."""
        if name == "0":
            return plain(str(self.script))
        if name == "BASH_SOURCE" and index in (None, "0"):
            return plain(str(self.here))
        if name in OF_THE_SHELL or not NAME.match(name):
            return Unset("is known to a run only")
        value = self.values.get(name)
        if isinstance(value, Unset):
            return value
        if index not in (None, "0"):
            known = isinstance(value, Array) and str(index).isdecimal()
            if isinstance(value, Array) and known and int(str(index)) < len(value.items):
                return value.items[int(str(index))]
            return Unset("is known to a run only")
        if isinstance(value, Array):
            return value.items[0] if value.items else ()
        return value

    def _alternative(
        self, part: WordPart, name: str, value: Value | Unset | None, sign: str, text: str
    ) -> list[tuple[Value, bool]]:
        """`${NAME:-text}` and its like."""
        array = self.values.get(name)
        no_items = isinstance(array, Array) and not array.items
        known = whole(value) if isinstance(value, tuple) else None
        sure = isinstance(value, tuple) and any(p.known and p.text for p in value)
        why = ""
        if isinstance(value, Unset):
            why = value.why
        elif value is None and name in os.environ:
            why = "has a value in this environment, which is not looked at"
        elif value is None and self.outside != _OUTSIDE:
            why = self.outside
        elif value is not None and ":" in sign and known is None and not sure:
            why = "may be empty, which only a run can tell"
        if why:
            if "=" in sign:
                self.lose(name, why)
            return [(self._source(part.raw, why), part.quoted)]
        there = value is not None and not no_items and (":" not in sign or sure)
        if there == ("+" in sign):
            return self._default(part, name, sign, text)
        kept = value if isinstance(value, tuple) and "+" not in sign else ()
        return [(kept, part.quoted)]

    def _default(self, part: WordPart, name: str, sign: str, text: str) -> list[tuple[Value, bool]]:
        if not part.quoted and text.startswith("~"):
            return [(self._source(part.raw, "begins in a home folder"), False)]
        parts = CommandScanner(text, self.line).alternative(quoted=part.quoted)
        values = [
            (value, quoted or part.quoted) for each in parts for value, quoted in self._of(each)
        ]
        joined = self._joined(values)
        if "=" in sign:
            self.store(name, joined)
            return [(joined, part.quoted)]
        if whole(joined) is None:
            return [(self._source(part.raw, "has a default that only a run can tell"), part.quoted)]
        return values

    # ---- sums and folders ---------------------------------------------------------------------

    def _sum(self, part: WordPart) -> Value:
        unknown = False

        def named(found: re.Match[str]) -> str:
            nonlocal unknown
            value = self._found(found[1] or found[2] or found[3], None)
            text = whole(value) if isinstance(value, tuple) else None
            if text is None or not re.fullmatch(r"0|-?[1-9]\d{0,18}", text):
                unknown = True
                return "0"
            return f"({text})"

        self.set_by_sum(part.text)
        filled = _IN_SUM.sub(named, part.text)
        simple = re.fullmatch(r"[\d\s()*/%+-]*", filled) is not None
        found = evaluated(filled) if simple and not unknown else None
        if found is None:
            return self._source(part.raw, "is a sum of what only a run can tell")
        return plain(str(found))

    def set_by_sum(self, text: str) -> None:
        """The variables that an arithmetic expression sets."""
        if re.search(r"(?<![=!<>])=(?!=)|<<=|>>=|\+\+|--", text):
            for name in NAME.findall(text):
                self.lose(name, f"is set by a sum ({self.place})")

    def _folder(self, text: str) -> str | None:
        """What `dirname`, `basename`, `realpath` and `cd FOLDER && pwd` print, or None."""
        found = list(commands(text, self.line))
        if not found or any(each.assignments for each in found):
            return None
        line = self.line
        words = [[self.text_of(word) for word in each.words] for each in found]
        self.line = line
        plainly = [[w for w in each if w not in ("--", "-P", "-L")] for each in words]
        last = plainly[-1]
        if found[-1].redirected or any(word is None for each in plainly for word in each):
            return None
        if any(word.spreads for each in found for word in each.words):
            return None
        match [[word or "" for word in each] for each in plainly]:
            case [["dirname", path]] if path:
                folder = path.rstrip("/").rpartition("/")[0].rstrip("/")
                return folder or ("/" if path[0] == "/" else ".")
            case [["basename", path]] if path.strip("/"):
                return path.rstrip("/").rpartition("/")[2]
            case [["realpath", path]] | [["readlink", "-f", path]] if Path(path).exists():
                return os.path.realpath(path)
            case [["cd", path], ["pwd"]] if "&&" in text and last == ["pwd"]:
                if Path(path).is_dir() and "-P" not in words[-1]:
                    return os.path.normpath(Path.cwd() / path)
                return os.path.realpath(path) if Path(path).is_dir() else None
        return None
