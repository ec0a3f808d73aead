"""Process logs: one format, the process's name in each line, no secrets.

    2026-01-31 12:00:00.123 INFO  worker-3 agentrl.actors.worker: episode g7/0#0 done

With a `path` the file gets everything and stderr only warnings, because a terminal shows progress
there. Secrets are the values of environment variables whose names look like it; they are replaced
in the finished line, tracebacks included. Control characters in it, which an error of user code may
hold, are shown and not obeyed.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentrl.disk import make_folder, narrow
from agentrl.visible import visible

__all__ = ["hider", "setup_logging"]

_SECRET_NAME = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
#: Shorter values ("false", "1") are settings, and would blot out ordinary words.
_MIN_SECRET_LENGTH = 8
_HIDDEN = "[hidden]"


def setup_logging(
    level: str, *, name: str = "main", path: Path | None = None, secrets: Sequence[str] = ()
) -> None:
    """Send the root logger's records from `level` ("INFO") on to `path` and stderr.

    Calling it again replaces the handlers. `name` is this process's place in the run;
    `secrets` are hidden beside those of the environment.
    """
    formatter = _Formatter(name, hider(secrets))
    stderr = logging.StreamHandler(sys.stderr)
    handlers: list[logging.Handler] = [stderr]
    if path is not None:
        make_folder(path.parent)
        stderr.setLevel(logging.WARNING)
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
        narrow(path)
    for handler in handlers:
        handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=handlers, force=True)


def hider(secrets: Sequence[str] = ()) -> Callable[[str], str]:
    """A function that hides `secrets`, and those of the environment, in a text."""
    values = _secrets(os.environ, secrets)
    if not values:
        return str
    found = re.compile("|".join(map(re.escape, values)))
    return lambda text: found.sub(_HIDDEN, text)


class _Formatter(logging.Formatter):
    """The line format; hides secrets, and shows control characters, in whatever the line has
    become."""

    default_msec_format = "%s.%03d"

    def __init__(self, name: str, hide: Callable[[str], str]) -> None:
        name = name.replace("%", "%%")
        super().__init__(f"%(asctime)s %(levelname)-5s {name} %(name)s: %(message)s")
        self._hide = hide

    def format(self, record: logging.LogRecord) -> str:
        return visible(self._hide(super().format(record)))


def _secrets(environment: Mapping[str, str], given: Sequence[str]) -> list[str]:
    """Values to hide, the longest first, so that no part of one is left standing."""
    values = {
        value
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET_LENGTH
    }
    return sorted(values | set(given), key=len, reverse=True)
