"""Where in user code an error was raised, and its words on one line."""

import os
import sysconfig
import traceback
from pathlib import Path

from agentrl.visible import error_text

__all__ = ["is_users", "place_of", "shown_path", "words_of"]

#: Code that no user of agentrl wrote.
_OTHERS = (
    "<",
    str(Path(__file__).resolve().parent) + os.sep,
    sysconfig.get_path("stdlib") + os.sep,
    sysconfig.get_path("purelib") + os.sep,
)
_MAX_CHARS = 500


def words_of(error: BaseException) -> str:
    """Class, message and place of `error`, as in `KeyError: 'x' (calc.py:14)`."""
    text = " ".join(error_text(error).split()).removesuffix(":")
    place = place_of(error)
    return text[:_MAX_CHARS] + (f" ({place})" if place else "")


def place_of(error: BaseException | None) -> str | None:
    """`file.py:12`: the innermost line that is neither agentrl's nor an installed package's, of
    `error` or else of what it was raised from; None where there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if is_users(frame.filename)]
        if theirs:
            return f"{shown_path(theirs[-1].filename)}:{theirs[-1].lineno}"
        seen.add(id(error))
        error = error.__cause__
    return None


def is_users(filename: str) -> bool:
    """Whether the code of that file is neither agentrl's nor an installed package's."""
    return not filename.startswith(_OTHERS)


def shown_path(path: str | Path) -> str:
    """`path` as seen from the current directory, if it lies in it."""
    path = Path(path)
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it has been removed
        return str(path)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
