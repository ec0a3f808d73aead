"""How a text is cut into words and tokens; `sentences.py` cuts it into sentences.

Tokens are those of the Penn Treebank (https://www.cis.upenn.edu/~bies/manuals/tagguide.pdf, and its
`tokenizer.sed`), as the published checks count them: a mark of punctuation is one, `don't` is `do`
and `n't`, and the full stop of an abbreviation, or within a number or an address, belongs to it.
"""

import re
import string

from agentrl.envs.grading.instructions.sentences import sentences

__all__ = ["EDGES", "bare", "sentences", "tokens", "words"]

#: What stands around a word.
EDGES = string.punctuation + " "
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
#: Marks that stand alone wherever they are; a colon or a comma before a digit is part of a number.
_MARK = re.compile(
    r"(\.{2,}|--|''|``|`|[:,](?!\d)|[;@#$%&?!*\[\](){}<>\"\u2012-\u2015\u00ab\u00bb\u2018-\u201e])"
)
#: The full stop that ends a sentence, before nothing but closing marks.
_LAST_STOP = re.compile(r"(?<=[^.])\.(?=[\])}>\"'\u00bb\u2019\u201d ]*$)")
_CLITIC = "'(?:re|ve|ll|[mtsdn])"
#: A quote that opens a word.
_OPENING = re.compile(rf"^'(?=\w)(?!{_CLITIC[1:]}\b)", re.I)
#: What is said in one with the word before it.
_JOINED = re.compile(r"(?<=[^'])('[smdSMD]|'(?:ll|LL|re|RE|ve|VE)|n't|N'T|')$")
_ONE_OF_TWO = re.compile(r"\b(can)(not)\b|\b(gim|lem)(me)\b|\b(gon)(na)\b|\b(got)(ta)\b", re.I)


def bare(text: str) -> str:
    """Without punctuation."""
    return text.translate(_NO_PUNCTUATION)


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores."""
    return re.findall(r"\w+", text)


def tokens(text: str) -> list[str]:
    """Words, what is said in one with them, and marks of punctuation; a double quote is `''`."""
    return [token for sentence in sentences(text) for token in _of_a_sentence(sentence)]


def _of_a_sentence(sentence: str) -> list[str]:
    found: list[str] = []
    for chunk in _LAST_STOP.sub(" . ", sentence).split():
        for piece in filter(None, _MARK.split(chunk)):
            found.extend([piece] if _MARK.fullmatch(piece) else _of_a_word(piece))
    return ["''" if mark == '"' else mark for mark in found]


def _of_a_word(word: str) -> list[str]:
    before, after = [], []
    if _OPENING.match(word):
        before, word = ["'"], word[1:]
    if joined := _JOINED.search(word):
        after, word = [joined[0]], word[: joined.start()]
    return [*before, *_ONE_OF_TWO.sub(_parted, word).split(), *after]


def _parted(found: re.Match[str]) -> str:
    return " {} {} ".format(*filter(None, found.groups()))
