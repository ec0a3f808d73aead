"""The connections between the buffer and its peers: messages take time, wait, or are lost.

    UP -> STILL -> UP      both directions wait, and then come in order
    UP -> CUT -> UP        what is on its way to the peer is lost, what is on its way to the buffer
                           in half of the cases; the rest may come after newer messages

Over one standing connection messages keep their order; those of two peers overtake each other. The
model of `agentrl.wire.transport`.
"""

import random
from collections import deque
from collections.abc import Callable

from agentrl.sim.timeline import Timeline

__all__ = ["Connection", "Network"]

LOST = 0.5

Action = Callable[[], None]


class Lane:
    """One direction of a connection, from one cut to the next: first in, first out."""

    def __init__(self, network: "Network") -> None:
        self._network = network
        self._arrives_at = 0.0
        self._waiting: deque[tuple[Action, bool]] = deque()
        self.still = False
        self.loses = 0.0

    def carry(self, action: Action, *, counts: bool = True) -> None:
        """Do `action` where it arrives. `counts`: nobody is done as long as it is on its way."""
        network = self._network
        if not (network.delay_s or self.still or self._waiting):
            action()
            return
        delay_s = network.rng.expovariate(1 / network.delay_s) if network.delay_s else 0.0
        self._arrives_at = max(self._arrives_at, network.timeline.now + delay_s)
        network.num_on_their_way += counts
        delay_s = self._arrives_at - network.timeline.now
        network.timeline.after(delay_s, lambda: self._come(action, counts))

    def go_on(self) -> None:
        """Hand over what waited, in order."""
        self.still = False
        while self._waiting and not self.still:
            self._arrive(*self._waiting.popleft())

    def _come(self, action: Action, counts: bool) -> None:
        if self.still or self._waiting:
            self._waiting.append((action, counts))
        else:
            self._arrive(action, counts)

    def _arrive(self, action: Action, counts: bool) -> None:
        self._network.num_on_their_way -= counts
        if not self.loses or self._network.rng.random() >= self.loses:
            action()


class Connection:
    """Two lanes: `up` leads to the buffer, `down` to the peer."""

    def __init__(self, network: "Network") -> None:
        self._network = network
        self.up, self.down = Lane(network), Lane(network)

    def cut(self) -> None:
        """It breaks, and another one takes its place."""
        self.up.loses, self.down.loses = LOST, 1.0
        for lane in (self.up, self.down):
            lane.go_on()
        self.up, self.down = Lane(self._network), Lane(self._network)

    def stand_still(self) -> None:
        """Nothing arrives, and nothing is lost."""
        self.up.still = self.down.still = True

    def go_on(self) -> None:
        """What waited arrives at once."""
        for lane in (self.up, self.down):
            lane.go_on()


class Network:
    """`delay_s` is the mean of the seconds that a message takes, 0: it arrives at once."""

    def __init__(self, timeline: Timeline, delay_s: float, seed: str) -> None:
        self.timeline = timeline
        self.delay_s = delay_s
        self.rng = random.Random(seed)
        self.num_on_their_way = 0

    def connect(self) -> Connection:
        """A connection between the buffer and one peer."""
        return Connection(self)
