"""`Words`: texts that a template is given without being shown them.

A template places text, and may look at it. Text of others must do neither: it may not spell a
control token, and it may not steer the program. So the template is given a short word in place of
each text, which holds a quote and a letter beyond ASCII. How these two come out says how the
template has escaped the text, and the text is put in, escaped so, when the rendering is done.

Blanks around a text stay around its word, so that a template may trim. Words of JSON schemas
(`string`, `properties`) are no secret, because templates ask for them.

Refused, as ConfigError: a template that changes or cuts its words.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agentrl.errors import ConfigError
from agentrl.tokens.spans import Author, Piece

__all__ = ["Words"]

#: JSON Schema's own words, and those of a function's description around it.
_KNOWN = frozenset(
    {
        *("type", "function", "name", "description", "parameters", "properties", "required"),
        *("items", "enum", "const", "default", "title", "anyOf", "oneOf", "allOf", "format"),
        *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "nullable"),
        *("additionalProperties", "strict", "return", "string", "integer", "number", "boolean"),
        *("array", "object", "null"),
    }
)
_MARKS = tuple(f"{first}{second}k" for first in "zjvw" for second in "qxzj")


class _Word(NamedTuple):
    """Where a word stands in a rendering, and how its text is escaped there: so many times, and
    each time to ASCII or not."""

    start: int
    stop: int
    number: int
    times: int
    is_ascii: bool


class Words:
    """The texts that one or several renderings are given. `source`: of the template, whose own
    words these must not be."""

    def __init__(self, source: str) -> None:
        lowered = source.lower()
        self._mark = next((mark for mark in _MARKS if mark not in lowered), "")
        if not self._mark:
            raise ConfigError(f"a chat template spells all of {', '.join(_MARKS)}; rename one")
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._word = re.compile(rf'{self._mark}(\\*)"(é|\\+u00e9)(\d+)e')

    def hide(self, text: str) -> str:
        """The word of a text: the same for the same text."""
        if not text.strip():
            return text
        core = text.strip()
        if core not in self._numbers:
            self._numbers[core] = len(self._texts)
            self._texts.append(core)
        start = text.index(core)
        return f"{text[:start]}{self._spelled(self._numbers[core])}{text[start + len(core) :]}"

    def fresh(self, text: str = "") -> str:
        """A word of its own, also of an empty text."""
        self._texts.append(text)
        return self._spelled(len(self._texts) - 1)

    def hide_in(self, value: Any) -> Any:
        """Each text in data as JSON has it, hidden."""
        if isinstance(value, str):
            return value if value in _KNOWN else self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide_in(name): self.hide_in(each) for name, each in value.items()}
        return [*map(self.hide_in, value)] if isinstance(value, list | tuple) else value

    def place(self, rendered: str, word: str) -> tuple[int, int] | None:
        """Where the word stands in a rendering at first; None: nowhere."""
        number = int(word.rpartition("é")[2][:-1])
        places = ((at.start, at.stop) for at in self._found(rendered) if at.number == number)
        return next(places, None)

    def last(self, rendered: str) -> int:
        """Where the last word of a rendering ends."""
        return max((at.stop for at in self._found(rendered)), default=0)

    def places(self, rendered: str) -> list[int]:
        """Where each word of a rendering ends."""
        return [at.stop for at in self._found(rendered)]

    def check(self, rendered: str, place: str) -> None:
        """Raise ConfigError where the template `place` has not left its words as they were."""
        if self._mark in self._word.sub("", rendered).lower():
            raise ConfigError(
                f"{place} cuts or changes the text that it shows, so nobody could say whose words "
                "are whose; write a --chat-format for it (docs/formats.md)"
            )

    def told(self, rendered: str) -> str:
        """The rendering with the texts in the place of their words."""
        return "".join(piece.text for piece in self.pieces(rendered))

    def pieces(self, rendered: str) -> Iterator[Piece]:
        """The template's own text as FORMAT, and the texts in the place of their words."""
        start = 0
        for at in self._found(rendered):
            yield Piece(Author.FORMAT, rendered[start : at.start])
            yield Piece(Author.FOREIGN, _escaped(self._texts[at.number], at))
            start = at.stop
        yield Piece(Author.FORMAT, rendered[start:])

    def _spelled(self, number: int) -> str:
        return f'{self._mark}"é{number}e'

    def _found(self, rendered: str) -> Iterator[_Word]:
        for match in self._word.finditer(rendered):
            times = (len(match[1]) + 1).bit_length() - 1  # a quote has 0, 1, 3 ... backslashes
            yield _Word(*match.span(), int(match[3]), times, match[2] != "é")


def _escaped(text: str, at: _Word) -> str:
    for _ in range(at.times):
        text = json.dumps(text, ensure_ascii=at.is_ascii)[1:-1]
    return text
