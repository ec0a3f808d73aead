"""`Marks`: text in which each control token is one letter that no text has.

A turn is read in it: only control ids are markers, and text that spells one stays text. The letters
are halves of surrogate pairs, which no tokenizer decodes to. A control token has one from when it
is first seen in what the template writes; the others have no part in how turns are written.
"""

import re
from collections.abc import Iterator, Sequence

from agentrl.errors import ConfigError
from agentrl.tokens.spans import Author, Piece
from agentrl.tokens.vocab import Vocab

__all__ = ["LETTERS", "Marks"]

_FIRST, _LAST = 0xD800, 0xDFFF
LETTERS = re.compile("[\ud800-\udfff]")


class Marks:
    """The control tokens of a vocabulary, but for those that are blanks."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._letters: dict[str, str] = {}
        self._by_id: dict[int, str] = {}
        texts = sorted((text for text in vocab.control if text.strip()), key=len, reverse=True)
        self._control = re.compile(f"({'|'.join(map(re.escape, texts))})") if texts else None

    def split(self, text: str) -> list[str]:
        """Text, control token, text, ..., text."""
        return [text] if self._control is None else self._control.split(text)

    def pieces(self, text: str) -> Iterator[Piece]:
        """A template's own text, in which control tokens are control tokens."""
        for number, part in enumerate(self.split(text)):
            if part:
                yield Piece(Author.CONTROL if number % 2 else Author.FORMAT, part)

    def of_text(self, text: str) -> str:
        """The same with letters."""
        parts = self.split(text)
        return "".join(self._letter(part) if at % 2 else part for at, part in enumerate(parts))

    def of_ids(self, ids: Sequence[int]) -> str:
        """What was sampled, with letters."""
        parts, start = list[str](), 0
        for at, id_ in enumerate(ids):
            if id_ in self._by_id:
                parts += [self._vocab.decode(ids[start:at]), self._by_id[id_]]
                start = at + 1
        return "".join([*parts, self._vocab.decode(ids[start:])])

    def shown(self, text: str) -> str:
        """Text with its letters as control tokens again."""
        return LETTERS.sub(lambda letter: self.tokens(letter[0])[0], text)

    def tokens(self, text: str) -> list[str]:
        """The control tokens of a text with letters."""
        known = list(self._letters)
        return [known[ord(letter) - _FIRST] for letter in LETTERS.findall(text)]

    def _letter(self, token: str) -> str:
        if token not in self._letters:
            letter = chr(_FIRST + len(self._letters))
            if ord(letter) > _LAST:
                raise ConfigError(f"a chat template writes more than {len(self._letters)} markers")
            self._letters[token] = self._by_id[self._vocab.control[token]] = letter
        return self._letters[token]
