"""What someone who mistyped a name probably meant."""

import difflib
from collections.abc import Iterable

__all__ = ["near", "nearest", "nearest_flag"]

#: A flag is another one misspelt where so much of it, of 1, is the same, and of each of its words.
_MISSPELT = 0.85
_ALIKE = 0.5


def near(name: str, known: Iterable[str]) -> list[str]:
    """The known names like `name`, at most three, the likest first."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean A, B?` for the known names like `name`, or an empty string."""
    close = near(name, known)
    return f"; did you mean {', '.join(close)}?" if close else ""


def nearest_flag(name: str, known: Iterable[str]) -> str:
    """As `nearest`, of flags: those that `name` misspells, or leaves the last word out of. Names
    that are merely alike mean other things: `--ref-load` is not `--load`, nor `--custom-rm-path`
    `--custom-tis-path`."""
    bare = _bare(name)
    alike = {other: _likeness(bare, _bare(other)) for other in dict.fromkeys(known)}
    close = sorted((o for o, likeness in alike.items() if likeness), key=lambda o: -alike[o])[:3]
    return f"; did you mean {', '.join(close)}?" if close else ""


def _bare(name: str) -> list[str]:
    return name.lstrip("-").lower().replace("_", "-").split("-")


def _likeness(words: list[str], others: list[str]) -> float:
    if set(words) < set(others):
        return _MISSPELT if len(words) > 1 and words == others[:-1] else 0.0
    if set(others) < set(words):
        return 0.0
    if len(words) == len(others) and not all(map(_is_alike, words, others)):
        return 0.0
    matcher = difflib.SequenceMatcher(None, "".join(words), "".join(others), autojunk=False)
    is_near = matcher.real_quick_ratio() >= _MISSPELT and matcher.ratio() >= _MISSPELT
    return matcher.ratio() if is_near else 0.0


def _is_alike(word: str, other: str) -> bool:
    return difflib.SequenceMatcher(None, word, other, autojunk=False).ratio() >= _ALIKE
