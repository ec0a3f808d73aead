"""What someone who mistyped a name probably meant."""

import difflib
from collections.abc import Iterable

__all__ = ["near", "nearest"]


def near(name: str, known: Iterable[str]) -> list[str]:
    """The known names like `name`, at most three, the likest first."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean A, B?` for the known names like `name`, or an empty string."""
    close = near(name, known)
    return f"; did you mean {', '.join(close)}?" if close else ""
