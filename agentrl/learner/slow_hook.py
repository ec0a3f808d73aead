"""`told_while_slow`: a function of the user's that does not come back is told, with its lines.

    called -> SLOW_S: told -> 2 SLOW_S: told -> 4 SLOW_S ...

A learner that waits for it beats all the while and is never killed: a function may take long. One
that holds the interpreter (C code that waits) is told when it lets go of it.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.user_traceback import is_users, shown_path

__all__ = ["SLOW_S", "told_while_slow"]

#: Seconds after which a function is told first.
SLOW_S = 60.0
_LOG = logging.getLogger(__name__)


@contextmanager
def told_while_slow(said: str, after_s: float | None = None) -> Iterator[None]:
    """While the block runs longer than `after_s` (default: SLOW_S), and each time that it has run
    twice as long, write to the log what `said` names, for how long, and the stack."""
    wait_s = SLOW_S if after_s is None else after_s
    caller, ended = threading.get_ident(), threading.Event()

    def watch() -> None:
        lasted_s, next_s = 0.0, wait_s
        while not ended.wait(next_s):
            lasted_s += next_s
            next_s = lasted_s
            _LOG.warning("%s", _where(said, caller, lasted_s))

    watcher = threading.Thread(target=watch, name="slow-hook", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _where(said: str, caller: int, lasted_s: float) -> str:
    frame = sys._current_frames().get(caller)
    stack = traceback.extract_stack(frame) if frame is not None else []
    theirs = [each for each in stack if is_users(each.filename)]
    at = f" at {shown_path(theirs[-1].filename)}:{theirs[-1].lineno}" if theirs else ""
    lines = "".join(traceback.format_list(stack)).rstrip()
    return f"{said} has not returned after {lasted_s:.0f} s, and stands{at}:\n{lines}"
