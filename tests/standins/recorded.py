"""What the stand-ins of trackers share: calls are recorded, may be let fail, and may wait."""

import threading
from typing import Any, NamedTuple

__all__ = ["Blocked", "Recorded"]


class Blocked(NamedTuple):
    """Calls that wait: `reached` is set by the first, and they go on once `release` is."""

    reached: threading.Event
    release: threading.Event


class Recorded:
    """The calls of a package. `error`: what a failure with a text raises."""

    def __init__(self, error: type[Exception]) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._error = error
        self._failing: dict[str, BaseException] = {}
        self._blocked: dict[str, Blocked] = {}

    def fail(self, call: str, error: str | BaseException) -> None:
        """Let the next calls of this name fail. A connection that breaks is no error of the
        package's own."""
        self._failing[call] = self._error(error) if isinstance(error, str) else error

    def block(self, call: str) -> Blocked:
        """Let calls of this name wait."""
        return self._blocked.setdefault(call, Blocked(threading.Event(), threading.Event()))

    def __call__(self, call: str, /, **said: Any) -> None:
        if call in self._failing:
            raise self._failing[call]
        self.calls.append((call, said))
        if (blocked := self._blocked.get(call)) is not None:
            blocked.reached.set()
            blocked.release.wait()
