"""The commands of a shell script, read and never run.

A part of bash, as launch scripts are written in it: lists, pipes, `if`, loops, `case`, functions,
subshells, arrays, assignments, here-documents, redirections. A command says what it depends on: a
condition, a loop, the function that it is the body of. Refused, with the line: what nothing closes,
a word or a bracket where none may stand, and lines that end with CR LF.
"""

import re
from collections.abc import Iterator

import msgspec

from agentrl.config.shell_words import Word, WordScanner
from agentrl.errors import ConfigError

__all__ = ["DECLARING", "Assignment", "Command", "CommandScanner", "commands"]

#: Builtins whose arguments are assignments.
DECLARING = frozenset({"export", "declare", "typeset", "local", "readonly"})
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[([^\]\n]*)\])?(\+?=)")
_REDIRECTION = re.compile(r"&>>?|\d*(?:<<<|<<-?|<>|>>|[<>]&|>\||[<>])(?!\()")
_FUNCTION = re.compile(r"\(\s*\)")
_OPERATORS = ("&&", "||", ";;&", ";;", ";&", "|&", ";", "|", "&", "\n")
_LOOPS = frozenset({"for", "select", "while", "until"})
_OPENS = _LOOPS | {"if", "case", "{"}
#: What may stand within which block, and what ends it.
_GOES_ON = {"then": {"if"}, "elif": {"if"}, "else": {"if"}, "do": _LOOPS}
_CLOSES = {"fi": {"if"}, "done": _LOOPS, "esac": {"case"}, "}": {"{"}}
_MAX_BLOCKS = 100
_FREE = frozenset({"!", "time"})


class Assignment(msgspec.Struct, frozen=True):
    """`NAME=word`, `NAME[index]=word`, or `NAME=(words)`, its `items`; `adds` for `+=`."""

    line: int
    name: str
    value: Word
    items: tuple[Word, ...] | None = None
    index: str | None = None
    adds: bool = False


class Command(msgspec.Struct, frozen=True):
    """A simple command from its first line to its last. `function`: name and line of the function
    whose body it belongs to; `redirected`: its output goes elsewhere; `commented`: a comment ends
    it, which no backslash continues; `num_ahead`: assignments that stand ahead of its words."""

    line: int
    last_line: int
    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...]
    conditional: bool = False
    in_loop: bool = False
    function: tuple[str, int] | None = None
    redirected: bool = False
    commented: bool = False
    num_ahead: int = 0

    @property
    def trailing(self) -> bool:
        """Whether its last word is a backslash and a blank, which continue nothing."""
        return bool(self.words) and self.words[-1].trailing


class _Block(msgspec.Struct, frozen=True):
    """What was opened, and the function whose body it is."""

    opener: str
    line: int
    function: str = ""


def commands(text: str, line: int = 1) -> Iterator[Command]:
    """The commands of a script, in order. Raises ConfigError with the line."""
    if (found := re.search(r"\r", text)) is not None:
        at = line + text.count("\n", 0, found.start())
        raise ConfigError(f"line {at}: a carriage return, which a shell takes for part of a word")
    return CommandScanner(text, line).commands()


class CommandScanner(WordScanner):
    """A place in a script. `_blocks`: what is open; `_pending`: the function whose body is next."""

    def __init__(self, text: str, line: int = 1) -> None:
        super().__init__(text, line)
        self._blocks: list[_Block] = []
        self._heredocs: list[tuple[Word, bool]] = []
        self._pending = ""
        self._closed = self._commented = False

    def commands(self) -> Iterator[Command]:
        joined, ended = False, ""
        while ended != "end":
            command, ended = self._command()
            if command is not None:
                apart = ended in ("|", "|&", "&")
                yield msgspec.structs.replace(
                    command, conditional=command.conditional or joined or apart
                )
            if ended in ("&&", "||", "|", "|&"):
                joined = True
            elif command is not None or ended != "\n":
                joined = False
        self._check_closed()

    def skip_substitution(self) -> None:
        opened = self._line
        kept = self._blocks, self._heredocs, self._pending
        self._blocks, self._heredocs, self._pending = [], [], ""
        self._closed = False
        while not self._closed:
            _, ended = self._command()
            if ended == "end":
                raise ConfigError(f"line {opened}: nothing closes the ( that begins here")
        self._check_closed()
        self._closed = False
        self._blocks, self._heredocs, self._pending = kept

    def _check_closed(self) -> None:
        for block in self._blocks[-1:]:
            raise ConfigError(
                f"line {block.line}: nothing closes the {block.opener} that begins here"
            )
        if self._pending:
            raise self._unexpected("the end of the script")

    def _unexpected(self, what: str) -> ConfigError:
        return ConfigError(f"line {self._line}: {what} may not stand here")

    # ---- commands -----------------------------------------------------------------------------

    def _command(self) -> tuple[Command | None, str]:
        words: list[Word] = []
        assigned: list[Assignment] = []
        ahead = 0
        first, redirected = Command(self._line, 0, (), ()), False
        while True:
            self._blanks()
            if not words and not assigned:
                first = self._placed()
            if len(words) == 1 and not assigned and self._is_function(words[0]):
                return None, "function"
            last = self._line
            if operator := self._operator(begun=bool(words or assigned)):
                break
            if found := _REDIRECTION.match(self._text, self._at):
                redirected = redirected or not found[0].startswith(("<", "2"))
                self._redirect(found)
            elif assignment := self._assignment(words):
                assigned.append(assignment)
                ahead += not words
            else:
                word = self._next_word(begun=bool(words or assigned))
                words += [word] if word is not None else []
        if not words and not assigned:
            return None, operator
        if self._pending:
            raise ConfigError(f"line {first.line}: the body of {self._pending} is no block")
        return msgspec.structs.replace(
            first,
            last_line=last,
            words=tuple(words),
            assignments=tuple(assigned),
            num_ahead=ahead,
            redirected=redirected,
            commented=self._commented and operator in ("\n", "end"),
        ), operator

    def _placed(self) -> Command:
        """An empty command with what it depends on."""
        blocks = self._blocks
        body = next((i for i, block in enumerate(blocks) if block.function), None)
        others, function = blocks, None
        if body is not None:
            whole = blocks[body].opener == "{"
            others = [*blocks[:body], *blocks[body + whole :]]
            function = blocks[body].function, blocks[body].line
        in_loop = any(block.opener in _LOOPS for block in blocks)
        return Command(self._line, 0, (), (), bool(others), in_loop, function)

    def _is_function(self, name: Word) -> bool:
        found = _FUNCTION.match(self._text, self._at)
        if found is None:
            return False
        self._at, self._pending = found.end(), name.raw
        return True

    def _next_word(self, *, begun: bool) -> Word | None:
        """A word; None for a keyword, which is followed here."""
        if self._text.startswith("((", self._at):
            return self._sum_command()
        if not self._in_word():
            raise self._unexpected(repr(self._text[self._at]))
        word = self._word()
        if not begun and word.raw == "[[":
            self._skip_test(word.line)
        return None if not begun and self._is_keyword(word) else word

    def _is_keyword(self, word: Word) -> bool:
        name, top = word.raw, self._blocks[-1].opener if self._blocks else ""
        if name == "function":
            self._blanks()
            self._pending = self._word().raw
            self._blanks()
            if found := _FUNCTION.match(self._text, self._at):
                self._at = found.end()
        elif name in _OPENS:
            self._open(name, word.line)
            if name == "case":
                self._begin_case()
            return name not in ("for", "select")  # these are commands that set a variable
        elif allowed := _GOES_ON.get(name, set()) | _CLOSES.get(name, set()):
            if top not in allowed:
                raise ConfigError(f"line {word.line}: {name} may not stand here")
            if name in _CLOSES:
                self._blocks.pop()
        return name in _FREE or name == "function" or name in _OPENS | {*_GOES_ON, *_CLOSES}

    def _open(self, opener: str, line: int) -> None:
        if len(self._blocks) == _MAX_BLOCKS:
            raise ConfigError(f"line {line}: more than {_MAX_BLOCKS} blocks nest here")
        self._blocks.append(_Block(opener, line, self._pending))
        self._pending = ""

    def _sum_command(self) -> Word:
        line, start = self._line, self._at
        found = re.compile(r".*?\)\)", re.DOTALL).match(self._text, start)
        if found is None:
            raise ConfigError(f"line {line}: nothing closes the (( that begins here")
        self._at = found.end()
        return Word(line, (), found[0])

    def _skip_test(self, line: int) -> None:
        while True:
            self._blanks()
            if self._at >= len(self._text):
                raise ConfigError(f"line {line}: nothing closes the [[ that begins here")
            if not self._in_word():
                self._at += 1
            elif self._word().raw == "]]":
                return

    # ---- case ---------------------------------------------------------------------------------

    def _begin_case(self) -> None:
        self._blanks()
        self._word()
        self._lines()
        if self._word().raw != "in":
            raise self._unexpected("a case without in")
        self._skip_pattern()

    def _skip_pattern(self) -> None:
        """Step over the pattern of a branch and its bracket."""
        self._lines()
        if re.compile(r"esac\b").match(self._text, self._at):
            return
        self._at += self._text.startswith("(", self._at)
        while True:
            self._lines()
            sign = self._text[self._at : self._at + 1]
            if sign in (")", "|"):
                self._at += 1
                if sign == ")":
                    return
            elif not self._in_word():
                raise self._unexpected(repr(sign) if sign else "the end of the script")
            else:
                self._word()

    def _lines(self) -> None:
        """Step over blanks and ends of lines."""
        self._blanks()
        while self._text.startswith("\n", self._at):
            self._at += 1
            self._blanks()

    # ---- between words ------------------------------------------------------------------------

    def _blanks(self) -> None:
        text, self._commented = self._text, False
        while self._at < len(text):
            if text[self._at] in " \t":
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._at += 2
            elif text[self._at] == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
                self._commented = True
            else:
                return

    def _operator(self, *, begun: bool) -> str:
        """What ends a command here; empty when nothing does."""
        text = self._text
        if self._at >= len(text):
            self._skip_heredocs()
            return "end"
        char = text[self._at]
        if char == ")" or (char == "(" and not text.startswith("((", self._at)):
            return self._bracket(char, begun=begun)
        sign = next((each for each in _OPERATORS if text.startswith(each, self._at)), "")
        if sign == "&" and text.startswith("&>", self._at):
            return ""
        self._at += len(sign)
        if sign == "\n":
            self._skip_heredocs()
        elif sign in (";;", ";&", ";;&"):
            if not self._blocks or self._blocks[-1].opener != "case":
                raise self._unexpected(sign)
            self._skip_pattern()
        return sign

    def _bracket(self, char: str, *, begun: bool) -> str:
        if char == "(":
            if begun:
                raise self._unexpected("(")
            self._open("(", self._line)
        elif self._blocks and self._blocks[-1].opener == "(":
            self._blocks.pop()
        elif self._blocks or not self._nested:
            raise self._unexpected(")")
        else:
            self._closed = True
        self._at += 1
        return char

    def _redirect(self, found: re.Match[str]) -> None:
        self._at = found.end()
        self._blanks()
        if not self._in_word():
            raise self._unexpected("a redirection to nothing")
        target = self._word()
        sign = found[0].lstrip("0123456789")
        if sign in ("<<", "<<-"):
            self._heredocs.append((target, sign == "<<-"))

    def _skip_heredocs(self) -> None:
        for end, indented in self._heredocs:
            text = "".join(part.text for part in end.parts)
            plain = not any(part.quoted for part in end.parts)
            before = ""
            while self._at < len(self._text):
                stop = self._text.find("\n", self._at)
                stop = len(self._text) if stop < 0 else stop
                line, self._at = before + self._text[self._at : stop], stop + 1
                if (line.lstrip("\t") if indented else line) == text:
                    break
                slashes = len(line) - len(line.rstrip("\\"))
                before = line[:-1] if plain and slashes % 2 else ""
            else:
                raise ConfigError(f"line {end.line}: nothing ends the here-document {text}")
        self._heredocs = []
        self._at = min(self._at, len(self._text))

    # ---- assignments --------------------------------------------------------------------------

    def _assignment(self, words: list[Word]) -> Assignment | None:
        found = _ASSIGNED.match(self._text, self._at)
        if found is None or (words and words[0].raw not in DECLARING):
            return None
        line, self._at = self._line, found.end()
        index, adds = found[2], found[3] == "+="
        if self._text.startswith("(", self._at):
            items = tuple(self._items(found[1]))
            return Assignment(line, found[1], Word(line, ()), items, index, adds)
        value = self._word() if self._in_word() else Word(line, ())
        return Assignment(line, found[1], value, None, index, adds)

    def _items(self, name: str) -> Iterator[Word]:
        opened, self._at = self._line, self._at + 1
        while True:
            self._lines()
            if self._text.startswith(")", self._at):
                self._at += 1
                return
            if not self._in_word():
                raise ConfigError(
                    f"line {opened}: nothing closes the array {name} that begins here"
                    + (f"; line {self._line} ends it" if self._at < len(self._text) else "")
                )
            yield self._word()
