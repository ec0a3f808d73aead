"""`HookWatch`: a function of the user's that does not return is told with its stack, and ends the
learner at a deadline.

    called -> SLOW_S: told -> 2 SLOW_S: told -> 4 SLOW_S: told ... -> limit: told, `late` is called

One thread looks at the calls of all threads. A call that holds the interpreter (C code that waits)
holds that thread too: faulthandler, which needs no interpreter, then writes the stacks and ends the
process a moment after the limit.
"""

import faulthandler
import functools
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from agentrl.user_traceback import is_users, shown_path

__all__ = ["FLAG", "SLOW_S", "HookWatch"]

FLAG = "--hook-timeout-s"
#: Seconds after which a call is told first.
SLOW_S = 60.0
#: Seconds between two looks at the calls, and how long faulthandler waits beyond the limit.
_LOOK_S, _GRACE_S = 1.0, 10.0
_LOG = logging.getLogger(__name__)


@dataclass
class _Call:
    said: str
    began: float
    next_word_s: float


class HookWatch:
    """Open, it watches what is called within `call`. `late` gets the words about a call that lasts
    longer than `limit_s`, and is to end the process."""

    def __init__(
        self,
        limit_s: float = math.inf,
        late: Callable[[str], None] = lambda words: None,
        slow_s: float = SLOW_S,
    ) -> None:
        self.limit_s = limit_s
        self._late = late
        self._slow_s = slow_s
        self._look_s = min(_LOOK_S, limit_s, slow_s)
        #: By the thread that makes it.
        self._calls: dict[int, _Call] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hook-watch", daemon=True)
        self._is_armed = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._thread.join()

    @contextmanager
    def call(self, said: str) -> Iterator[None]:
        """Watch the block, which messages name as `said`; within another call, that one."""
        caller = threading.get_ident()
        if caller in self._calls:
            yield
            return
        self._calls[caller] = _Call(said, time.monotonic(), self._slow_s)
        try:
            yield
        finally:
            self._calls.pop(caller, None)

    def watched(self, function: Callable[..., Any], said: str) -> Callable[..., Any]:
        """`function`, whose calls are watched, and those of a function that it returns."""

        @functools.wraps(function)
        def called(*args: Any, **named: Any) -> Any:
            with self.call(said):
                found = function(*args, **named)
            return self.watched(found, said) if callable(found) else found

        return called

    def _watch(self) -> None:
        while not self._closed.wait(self._look_s):
            for caller, call in list(self._calls.items()):
                self._look(caller, call, time.monotonic() - call.began)
            self._arm(is_called=bool(self._calls))
        self._arm(is_called=False)

    def _look(self, caller: int, call: _Call, lasted_s: float) -> None:
        if lasted_s >= self.limit_s:
            self._calls.pop(caller, None)
            at, stack = _standing(caller)
            _LOG.warning("%s is ended; its stack:\n%s", call.said, stack)
            self._late(
                f"{call.said} has not returned within {self.limit_s:g} s ({FLAG}), and stood{at}: "
                "the run ends here; mend the function or raise the limit, and continue with "
                "--resume"
            )
        elif lasted_s >= call.next_word_s:
            call.next_word_s = 2 * lasted_s
            at, stack = _standing(caller)
            told = f"{call.said} has not returned after {lasted_s:.0f} s, and stands{at}"
            _LOG.warning("%s:\n%s", told, stack)

    def _arm(self, *, is_called: bool) -> None:
        """Have faulthandler end the process unless this thread comes here again."""
        if is_called and math.isfinite(self.limit_s):
            faulthandler.dump_traceback_later(self.limit_s + _GRACE_S, exit=True)
            self._is_armed = True
        elif self._is_armed:
            faulthandler.cancel_dump_traceback_later()
            self._is_armed = False


def _standing(caller: int) -> tuple[str, str]:
    """Where a thread stands: ` at mine.py:4` for the user's innermost line, and all lines."""
    frame = sys._current_frames().get(caller)
    stack = traceback.extract_stack(frame) if frame is not None else []
    theirs = [each for each in stack if is_users(each.filename)]
    at = f" at {shown_path(theirs[-1].filename)}:{theirs[-1].lineno}" if theirs else ""
    return at, "".join(traceback.format_list(stack)).rstrip()
