"""All engines: which one plays an episode, and what a push does to them.

An episode stays with its engine; a new one goes where fewest episodes are, as the router does. An
engine that comes back takes the current weights, at the end of the push if one is under way. While
no engine is there, turns wait.
"""

from collections.abc import Callable

from agentrl.sim.engine import Engine, Speed
from agentrl.sim.timeline import Timeline
from agentrl.sim.truth import PublishedWeights

__all__ = ["SimFleet"]


class SimFleet:
    """Engines that serve nothing until the first push has ended."""

    def __init__(self, timeline: Timeline, speed: Speed, num_engines: int) -> None:
        self._timeline = timeline
        self._speed = speed
        self.engines = [Engine(timeline, speed) for _ in range(num_engines)]
        self._weights: PublishedWeights | None = None
        self._pushing = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def busy_s(self) -> float:
        """Mean over the engines of the seconds with a turn in the batch."""
        for engine in self.engines:
            engine.measure()
        return sum(engine.busy_s for engine in self.engines) / len(self.engines)

    def route(self, home: Engine | None) -> Engine | None:
        """Where the next turn of an episode goes that was at `home`, counted there when it is new;
        None while no engine is there."""
        if home is not None and not home.lost:
            return home
        there = [engine for engine in self.engines if not engine.lost]
        chosen = min(there, key=lambda engine: engine.load, default=None)
        if chosen is not None:
            chosen.load += 1
        return chosen

    @property
    def num_turns(self) -> int:
        """Turns that are on engines."""
        return sum(engine.num_turns for engine in self.engines)

    def when_there_is_one(self, action: Callable[[], None]) -> None:
        """Call `action` as soon as an engine is back."""
        self._waiting.append(action)

    def begin_push(self) -> None:
        """Every engine pauses."""
        self._pushing = True
        for engine in self.engines:
            if not engine.lost:
                engine.pause()

    def end_push(self, weights: PublishedWeights) -> None:
        """Every engine goes on, with `weights`."""
        self._pushing, self._weights = False, weights
        for engine in self.engines:
            if not engine.lost:
                engine.resume(weights)

    def restart(self, index: int) -> None:
        """Another engine takes the place of a lost one."""
        engine = self.engines[index] = Engine(self._timeline, self._speed)
        if self._weights is not None and not self._pushing:
            engine.resume(self._weights)
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action()
