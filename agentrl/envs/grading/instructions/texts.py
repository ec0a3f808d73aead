"""How a text is cut into words, sentences and paragraphs."""

import re
import string

__all__ = ["EDGES", "bare", "sentences", "tokens", "words"]

#: What stands around a word.
EDGES = string.punctuation + " "
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TOKEN = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")
_END = re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"')\]’”])\s+")
#: What a full stop ends without ending a sentence.
_SHORT = re.compile(
    r"(?:^|\s|\()(?:mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|inc|no|fig|e\.g|i\.e|u\.s|[a-z])\.$", re.I
)


def bare(text: str) -> str:
    """Without punctuation."""
    return text.translate(_NO_PUNCTUATION)


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores."""
    return re.findall(r"\w+", text)


def tokens(text: str) -> list[str]:
    """Words, contractions and hyphens within, and each mark of punctuation."""
    return _TOKEN.findall(text)


def sentences(text: str) -> list[str]:
    """Sentences end in a full stop, a question or an exclamation mark before white space; one that
    ends in an abbreviation goes on."""
    found: list[str] = []
    for part in _END.split(text.strip()):
        if found and _SHORT.search(found[-1]):
            found[-1] += f" {part}"
        elif part:
            found.append(part)
    return found
