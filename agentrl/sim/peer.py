"""One incarnation of a process under virtual time, in the production conversation with the buffer.

UP -> CUT OFF -> UP       (what either side says meanwhile is lost)
any -> GONE
"""

import sys
from collections import deque
from collections.abc import Callable
from typing import Protocol

from agentrl.errors import FencedError
from agentrl.sim.timeline import Timeline, Timer
from agentrl.sim.truth import BrokenPromiseError
from agentrl.types import EpisodeId
from agentrl.wire.conversation import Conversation
from agentrl.wire.messages import Message, Refused, Role, Welcome
from agentrl.wire.outbox import Outbox

__all__ = ["PeerLine", "SimPeer"]

#: Messages that come once more after a reconnect, answered or not.
DOUBLED = 3
RESEND_S = 2.0


class PeerLine(Protocol):
    """What carries messages to the buffer."""

    @property
    def timeline(self) -> Timeline:
        """The time of all its peers."""
        ...

    def post(self, peer: "SimPeer", epoch: int, seq: int, message: Message) -> None:
        """Take a message; one that comes while the buffer is away is lost."""
        ...


class SimPeer:
    """`take` is given what the buffer says, the first Welcome included; `running` tells what plays
    here. `is_fenced`: told to exit."""

    def __init__(
        self,
        line: PeerLine,
        role: Role,
        name: str,
        incarnation: int,
        take: Callable[[Message], None],
        running: Callable[[], list[EpisodeId]] = list,
    ) -> None:
        self.name = name
        self.incarnation = str(incarnation)
        self.connection = f"{name}.{incarnation}"
        self.gone = False
        self.is_cut_off = False
        self.is_fenced = False
        self._line = line
        self._take = take
        outbox = Outbox(sys.maxsize, RESEND_S)
        self._talk = Conversation(role, name, self.incarnation, running, outbox)
        self._timer: Timer | None = None
        self._recent: deque[tuple[int, Message]] = deque(maxlen=DOUBLED)
        self._doubled: list[tuple[int, Message]] = []
        self._when_settled: list[Callable[[], None]] = []

    @property
    def is_quiet(self) -> bool:
        """Whether the buffer knows this process, and has answered all that it was told."""
        return self._talk.is_welcomed and not len(self._talk.outbox)

    def when_settled(self, action: Callable[[], None]) -> None:
        """Call `action` as soon as the buffer has committed everything it was told."""
        self._when_settled.append(action)
        self._call_settled()

    def join(self) -> None:
        """The process has started."""
        self._talk.begin(self._line.timeline.now)
        self._act()

    def lost(self) -> None:
        """It notices that the buffer is another one."""
        self._talk.lose(self._line.timeline.now, "the connection broke")
        self._act()

    def send(self, message: Message) -> None:
        """Say it once, now or not at all."""
        if self._talk.is_welcomed:
            self._talk.spoke(self._line.timeline.now)
            self._post(0, message)

    def deliver(self, message: Message) -> None:
        """Say it until it is answered."""
        self._recent.append((self._talk.outbox.add(message, ()), message))
        self._act()

    def cut_off(self) -> None:
        """The connection breaks."""
        self.is_cut_off = True
        self._talk.lose(self._line.timeline.now, "the connection broke")

    def reconnect(self) -> None:
        """It stands again. The last messages come once more, answered or not."""
        self.is_cut_off = False
        self._doubled = list(self._recent)
        self._act()

    def arrive(self, message: Message) -> None:
        """The buffer says something."""
        if self.is_cut_off or self.is_fenced or self.gone:
            return
        self._talk.heard(self._line.timeline.now)
        try:
            is_for_owner = self._talk.take(message)
        except FencedError:
            self.is_fenced = True
            return
        if isinstance(message, Refused) and self._talk.role != "worker":
            raise BrokenPromiseError(f"the buffer refuses {self.connection}: {message.reason}")
        if isinstance(message, Welcome):
            self._welcomed()
        if is_for_owner or isinstance(message, Welcome):
            self._take(message)
        self._call_settled()

    def _welcomed(self) -> None:
        self._act()
        doubled, self._doubled = self._doubled, []
        for seq, told in doubled:
            self._post(seq, told)

    def _act(self) -> None:
        if self.is_cut_off or self.is_fenced or self.gone:
            return
        now = self._line.timeline.now
        while (pending := self._talk.due(now)) is not None:
            self._talk.said(pending, now)
            self._post(pending.seq, pending.message)
        self._look_at(self._talk.next_due())

    def _look_at(self, when: float) -> None:
        """A look that is planned for too early finds nothing, and plans the next one."""
        if self._timer is not None:
            if self._timer.when <= when:
                return
            self._timer.cancel()
        timeline = self._line.timeline
        self._timer = timeline.after(max(0.0, when - timeline.now), self._look)

    def _look(self) -> None:
        self._timer = None
        self._act()

    def _post(self, seq: int, message: Message) -> None:
        self._line.post(self, self._talk.epoch, seq, message)

    def _call_settled(self) -> None:
        if not len(self._talk.outbox):
            waiting, self._when_settled = self._when_settled, []
            for action in waiting:
                action()
