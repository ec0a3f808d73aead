"""Text of a model, tool or task as a terminal and a page may show it.

Line breaks and tabs stay. Every other control, format, surrogate or separator character becomes
visible: ESC as the picture of ESC, the others by their code point. What comes out can move no
cursor, change no colour, turn no line around, and is legal in XML.
"""

import unicodedata
from collections.abc import Sequence

from agentrl.tokens.vocab import Vocab

__all__ = ["pieces", "visible"]

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: A character of UTF-8 that is split over tokens is shown with the last of them.
_MAX_PENDING = 8


def visible(text: str) -> str:
    """`text` with its hidden characters shown, line breaks and tabs apart."""
    return "".join(map(_shown, text))


def pieces(vocab: Vocab, ids: Sequence[int]) -> list[str]:
    """The text of each of `ids`, not yet `visible`; empty where a later one completes it."""
    found: list[str] = []
    pending: list[int] = []
    for id_ in ids:
        pending.append(id_)
        text = vocab.decode(pending)
        if text.endswith("\ufffd") and len(pending) < _MAX_PENDING:
            found.append("")
            continue
        found.append(text)
        pending.clear()
    if pending:
        found[-1] = vocab.decode(pending)
    return found


def _shown(character: str) -> str:
    if character in "\n\t":
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if unicodedata.category(character) in _HIDDEN or code & 0xFFFE == 0xFFFE:
        return f"<U+{code:04X}>"
    return character
