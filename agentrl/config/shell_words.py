"""The words of a shell script, read and never run: their parts, quotes undone, with their lines.

What stands in double quotes, in `${}`, in `$(( ))` and in `$( )` nests as bash nests it. A word
that a shell turns into something else before it looks at variables (a file pattern, braces, `~`)
says so. Refused, with the line: a quote or a bracket that nothing closes, and what nests too deep.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Literal

import msgspec

from agentrl.errors import ConfigError

__all__ = ["NAME", "Word", "WordPart", "WordScanner"]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL = re.compile(r"[\s;&|()<>'\"$`\\]")
_PARAMETER = re.compile(r"[\d@*#?$!-]")
_BLANK_BEHIND = re.compile(r"\\[ \t]+(?=\n|\Z)|\\[ \t]{2,}(?=#)")
_HOME = re.compile(r"(?:^|[=:])~")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b"}
_ANSI |= {"f": "\f", "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?"}
_CODE = re.compile(r"x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})")
_MAX_DEPTH = 40
#: What a dollar bears that begins nothing.
_ALONE = "$"


class WordPart(msgspec.Struct, frozen=True):
    """A piece of a word. `text`: of a variable what stands within `${}`; of a command or a sum what
    is to be run; of `other` why only a shell can tell it. `raw`: as it was written."""

    kind: Literal["text", "variable", "command", "sum", "other"]
    text: str
    raw: str = ""
    quoted: bool = False


class Word(msgspec.Struct, frozen=True):
    """A word, and the line that it begins in. `raw`: as it was written; `trailing`: it ends with a
    backslash and a blank at the end of a line, which continues nothing."""

    line: int
    parts: tuple[WordPart, ...]
    raw: str = ""
    trailing: bool = False

    @property
    def text(self) -> str:
        """The word as it stands, without quotes."""
        return "".join(part.raw or part.text for part in self.parts)

    @property
    def has_home(self) -> bool:
        """Whether a shell puts a home folder in the place of a `~`."""
        return any(
            bool(_HOME.search(part.text if index == 0 else f" {part.text}"))
            for index, part in enumerate(self.parts)
            if part.kind == "text" and not part.quoted
        )

    @property
    def spreads(self) -> str:
        """Why a shell makes other words of it, or nothing."""
        plain = [part for part in self.parts if part.kind == "text" and not part.quoted]
        text = "".join(part.text for part in plain)
        if re.search(r"[*?[]", text):
            return "is a pattern of file names"
        if re.search(r"\{.*(,|\.\.).*\}", text, re.DOTALL):
            return "has braces that a shell expands"
        return ""


class WordScanner:
    """A place in a text, from which words are read. `_nested`: how many substitutions are open."""

    def __init__(self, text: str, line: int = 1) -> None:
        self._text, self._at, self._first, self._nested = text, 0, line, 0
        self._newlines = [found.start() for found in re.finditer("\n", text)]

    @property
    def _line(self) -> int:
        return self._first + bisect_left(self._newlines, self._at)

    def skip_substitution(self) -> None:
        """Step over the commands of `$( )` and the bracket that closes them."""
        raise NotImplementedError

    def alternative(self, *, quoted: bool) -> tuple[WordPart, ...]:
        """All of the text as the word in `${NAME:-word}`; its plain blanks part words."""
        if quoted:
            return tuple(part for part in self.inside("", keeps_quotes=True))
        parts: list[WordPart] = []
        while self._at < len(self._text):
            if self._in_word():
                parts += self._piece()
            else:
                parts.append(WordPart("text", self._text[self._at]))
                self._at += 1
        return tuple(parts)

    def _in_word(self) -> bool:
        if self._at >= len(self._text):
            return False
        char = self._text[self._at]
        if char in "<>":
            return self._text.startswith("(", self._at + 1)
        return char not in " \t\n;&|()"

    def _word(self) -> Word:
        line, start, parts, trailing = self._line, self._at, list[WordPart](), False
        while self._in_word():
            trailing = _BLANK_BEHIND.match(self._text, self._at) is not None
            parts += self._piece()
        raw = self._text[start : self._at]
        return Word(line, _unparted(parts, raw), raw, trailing)

    def _piece(self) -> list[WordPart]:
        text, char = self._text, self._text[self._at]
        if char == "'":
            start, end = self._at + 1, self._closing("'")
            self._at = end + 1
            return [WordPart("text", text[start:end], quoted=True)]
        if char == '"':
            self._at += 1
            return list(self.inside('"')) or [WordPart("text", "", quoted=True)]
        if char in "$`":
            return [self._dollar(quoted=False)]
        if char in "<>":
            return [self._process()]
        if char == "\\":
            after = text[self._at + 1 : self._at + 2]
            self._at += 2
            return [] if after == "\n" else [WordPart("text", after or "\\", quoted=True)]
        stop = _SPECIAL.search(text, self._at)
        piece = text[self._at : stop.start() if stop else len(text)] or char
        self._at += len(piece)
        return [WordPart("text", piece)]

    def inside(self, closing: str, *, keeps_quotes: bool = False) -> Iterator[WordPart]:
        """The parts up to `closing`, or up to the end where there is none. `keeps_quotes`: of a
        text within `${}` within quotes, where double quotes are dropped."""
        opened, plain = self._line, ""
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == closing:
                self._at += 1
                break
            if char in "$`":
                if plain:
                    yield WordPart("text", plain, quoted=True)
                plain = ""
                yield self._dollar(quoted=True)
            elif char == "\\":
                after = self._text[self._at + 1 : self._at + 2]
                escapes = '"$`\\}' if keeps_quotes else '"$`\\'
                plain += "" if after == "\n" else after if after in escapes else char + after
                self._at += 2
            else:
                plain += "" if keeps_quotes and char == '"' else char
                self._at += 1
        else:
            if closing:
                raise ConfigError(f"line {opened}: nothing closes the quote that begins here")
        if plain:
            yield WordPart("text", plain, quoted=True)

    # ---- what begins with a dollar ------------------------------------------------------------

    def _dollar(self, *, quoted: bool) -> WordPart:
        self._nested += 1
        if self._nested > _MAX_DEPTH:
            raise ConfigError(f"line {self._line}: more than {_MAX_DEPTH} substitutions nest here")
        try:
            return self._substitution(quoted=quoted)
        finally:
            self._nested -= 1

    def _substitution(self, *, quoted: bool) -> WordPart:
        text, start = self._text, self._at
        if text[start] == "`":
            end = self._closing("`", escapes=True)
            self._at = end + 1
            return WordPart("command", text[start + 1 : end], text[start : end + 1], quoted)
        if text.startswith("$((", start) and (end := self._end_of_sum()):
            self._at = end
            return WordPart("sum", text[start + 3 : end - 2], text[start:end], quoted)
        if text.startswith("$(", start):
            self._at += 2
            self.skip_substitution()
            raw = text[start : self._at]
            return WordPart("command", raw[2:-1], raw, quoted)
        if text.startswith("${", start):
            self._skip_braces(quoted=quoted)
            raw = text[start : self._at]
            return WordPart("variable", raw[2:-1], raw, quoted)
        if text.startswith("$'", start) and not quoted:
            return self._ansi()
        if text.startswith('$"', start) and not quoted:
            end = self._at + 1
            self._at += 2
            list(self.inside('"'))
            return WordPart("other", "is translated by a shell", text[end - 1 : self._at])
        if text.startswith("$[", start):
            raise ConfigError(f"line {self._line}: $[ ] is not read; write $(( )) in its place")
        name = NAME.match(text, start + 1) or _PARAMETER.match(text, start + 1)
        if name is None:
            self._at += 1
            return WordPart("text", "$", "" if quoted else _ALONE, quoted=True)
        self._at = name.end()
        return WordPart("variable", name[0], "$" + name[0], quoted)

    def _end_of_sum(self) -> int:
        """Where `$((` ends, or 0 where it begins a command in brackets."""
        depth, start, line = 0, self._at, self._line
        try:
            self._at += 1
            while self._at < len(self._text):
                char = self._text[self._at]
                if char in "$`":
                    self._dollar(quoted=True)
                    continue
                depth += (char == "(") - (char == ")")
                self._at += 1
                if depth == 1 and char == ")":
                    return self._at + 1 if self._text.startswith(")", self._at) else 0
            raise ConfigError(f"line {line}: nothing closes the $(( that begins here")
        finally:
            self._at = start

    def _skip_braces(self, *, quoted: bool) -> None:
        line, text = self._line, self._text
        self._at += 2
        while self._at < len(text):
            char = text[self._at]
            if char == "}":
                self._at += 1
                return
            if char == "'":  # within double quotes too bash looks for its other end
                self._at = self._closing("'") + 1
            elif char == '"':
                self._at += 1
                list(self.inside('"'))
            elif char in "$`":
                self._dollar(quoted=quoted)
            else:
                self._at += 2 if char == "\\" else 1
        raise ConfigError(f"line {line}: nothing closes the ${{ that begins here")

    def _ansi(self) -> WordPart:
        """`$'...'`: text with the escapes of C."""
        start = self._at
        self._at += 1
        end = self._closing("'", escapes=True)
        body, self._at = self._text[start + 2 : end], end + 1
        raw, text, at = self._text[start : end + 1], "", 0
        while at < len(body):
            if body[at] != "\\":
                text, at = text + body[at], at + 1
            elif body[at + 1 : at + 2] in _ANSI:
                text, at = text + _ANSI[body[at + 1]], at + 2
            else:
                found = _CODE.match(body, at + 1)
                digits = found and next(filter(None, found.groups()))
                code = int(digits, 8 if found and found[4] else 16) if digits else 0
                if not (found and 0 < code < 128):
                    return WordPart("other", "has an escape that a shell knows", raw)
                text, at = text + chr(code), found.end()
        return WordPart("text", text, quoted=True)

    def _process(self) -> WordPart:
        start = self._at
        self._at += 2
        self._nested += 1
        self.skip_substitution()
        self._nested -= 1
        raw = self._text[start : self._at]
        return WordPart("other", "is the output of a command", raw)

    def _closing(self, quote: str, *, escapes: bool = False) -> int:
        pattern = rf"(?:\\.|[^\\{quote}])*{quote}" if escapes else f"[^{quote}]*{quote}"
        found = re.compile(pattern, re.DOTALL).match(self._text, self._at + 1)
        if found is None:
            raise ConfigError(f"line {self._line}: nothing closes the {quote} that begins here")
        return found.end() - 1


def _unparted(parts: list[WordPart], raw: str) -> tuple[WordPart, ...]:
    """A dollar that begins nothing is a text. Bash does not part the values in its word at their
    blanks, so that a word with both is left to a shell."""
    is_alone = any((part.kind, part.raw) == ("text", _ALONE) for part in parts)
    if is_alone and any(part.kind != "text" and not part.quoted for part in parts):
        return (WordPart("other", "has a $ by itself, beside which a shell parts nothing", raw),)
    return tuple(parts)
