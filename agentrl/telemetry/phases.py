"""When each phase of a start was reached, in `phases.json` of the run directory."""

from pathlib import Path

import msgspec

from agentrl.clock import Clock
from agentrl.disk import replace_file

__all__ = ["Phases"]


class Phases:
    """Marks of the injected clock, in seconds since `origin`."""

    def __init__(self, path: Path, clock: Clock, origin: float) -> None:
        self._path = path
        self._clock = clock
        self._origin = origin
        self._marks: list[dict[str, object]] = []

    def mark(self, phase: str) -> float:
        """Note that `phase` was reached now; returns its time in seconds."""
        elapsed = self._clock.now() - self._origin
        self._marks.append({"phase": phase, "t_s": round(elapsed, 3)})
        data = msgspec.json.format(msgspec.json.encode(self._marks))
        replace_file(self._path, data, durable=False)
        return elapsed
