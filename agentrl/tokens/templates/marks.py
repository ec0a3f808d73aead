"""`Marks`: text in which each control token is one letter that no text has.

A turn is read in it: only control ids are markers, and text that spells one stays text.
"""

import re
from collections.abc import Iterator, Sequence

from agentrl.tokens.spans import Author, Piece
from agentrl.tokens.vocab import Vocab

__all__ = ["LETTERS", "Marks"]

#: The first letter of a private plane of Unicode; each control token has one from here on.
_FIRST = 0xF0000
LETTERS = re.compile("[\U000f0000-\U0010ffff]")


class Marks:
    """The control tokens of a vocabulary, but for those that are blanks."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        texts = [text for text in vocab.control if text.strip()]
        self._letters = {text: chr(_FIRST + at) for at, text in enumerate(texts)}
        self._texts = {letter: text for text, letter in self._letters.items()}
        self._by_id = {vocab.control[text]: letter for text, letter in self._letters.items()}
        longest_first = sorted(map(re.escape, texts), key=len, reverse=True)
        self._control = re.compile(f"({'|'.join(longest_first)})") if texts else None

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
        return "".join(self._letters.get(part, part) for part in self.split(text))

    def of_ids(self, ids: Sequence[int]) -> str:
        """What was sampled, with letters."""
        parts, plain = list[str](), list[int]()
        for id_ in ids:
            letter = self._by_id.get(id_)
            if letter is None:
                plain.append(id_)
                continue
            parts += [self._decoded(plain), letter]
            plain = []
        return "".join([*parts, self._decoded(plain)])

    def shown(self, text: str) -> str:
        """Text with its letters as control tokens again, for people."""
        return LETTERS.sub(lambda letter: self._texts.get(letter[0], "\ufffd"), text)

    def tokens(self, text: str) -> list[str]:
        """The control tokens of a text with letters."""
        return [self._texts[letter] for letter in LETTERS.findall(text)]

    def _decoded(self, ids: Sequence[int]) -> str:
        return LETTERS.sub("\ufffd", self._vocab.decode(ids))
