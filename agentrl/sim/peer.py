"""One incarnation of a process, in its conversation with the buffer.

    HELLO -> WELCOMED -> GONE          (a restarted buffer: HELLO again)
    any -> CUT OFF -> HELLO            (what either side says meanwhile is lost)
    any -> FENCED                      (told that another process has its place: it must exit)

The model of `agentrl.wire.peer`: `deliver` goes out until the buffer has answered it, `send` once.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from agentrl.sim.truth import BrokenPromiseError
from agentrl.types import EpisodeId
from agentrl.wire.messages import Ack, Finished, Heartbeat, Hello, Message, Refused, Role, Welcome

__all__ = ["Line", "Peer"]

#: Messages that come once more after a reconnect, answered or not.
DOUBLED = 3


class Line(Protocol):
    """What carries messages to the buffer."""

    def post(self, peer: "Peer", seq: int, message: Message) -> None:
        """Take a message; one that comes while the buffer is away is lost."""
        ...


class Peer:
    """`take` is given what the buffer says, Welcome included; `running` tells what plays here."""

    def __init__(
        self,
        line: Line,
        role: Role,
        name: str,
        incarnation: int,
        take: Callable[[Message], None],
        running: Callable[[], list[EpisodeId]] = list,
    ) -> None:
        self.name = name
        self.incarnation = str(incarnation)
        self.connection = f"{name}.{incarnation}"
        self.epoch = 0
        self.gone = False
        self.is_cut_off = False
        self.is_fenced = False
        self._line = line
        self._role: Role = role
        self._take = take
        self._running = running
        self._welcomed = False
        self._seq = 0
        self._outbox: dict[int, Message] = {}
        self._recent: deque[tuple[int, Message]] = deque(maxlen=DOUBLED)
        self._doubled: list[tuple[int, Message]] = []
        self._when_settled: list[Callable[[], None]] = []

    @property
    def is_quiet(self) -> bool:
        """Whether the buffer knows this process, and has answered all that it was told."""
        return self._welcomed and not self._outbox

    def when_settled(self, action: Callable[[], None]) -> None:
        """Call `action` as soon as the buffer has committed everything it was told."""
        self._when_settled.append(action)
        self._settle([])

    def hello(self) -> None:
        """Say who this is; after the Welcome everything unsettled goes out again."""
        if self.gone or self.is_cut_off or self.is_fenced:
            return
        self._welcomed = False
        reported = [m.report.id for m in self._outbox.values() if isinstance(m, Finished)]
        running = [*self._running(), *reported]
        self._line.post(self, 0, Hello(self._role, self.name, self.incarnation, running))

    def beat(self) -> None:
        """Still here; and everything unsettled is due again, or else another Hello."""
        if self._welcomed:
            self.send(Heartbeat())
            self._repeat()
        else:
            self.hello()

    def send(self, message: Message) -> None:
        """Say it once."""
        if self._welcomed:
            self._line.post(self, 0, message)

    def deliver(self, message: Message) -> None:
        """Say it until it is answered."""
        self._seq += 1
        self._outbox[self._seq] = message
        self._recent.append((self._seq, message))
        if self._welcomed:
            self._line.post(self, self._seq, message)

    def cut_off(self) -> None:
        """The connection breaks."""
        self.is_cut_off, self._welcomed = True, False

    def reconnect(self) -> None:
        """It stands again. The last messages come once more, answered or not."""
        self.is_cut_off = False
        self._doubled = list(self._recent)
        self.hello()

    def arrive(self, message: Message) -> None:
        """The buffer says something."""
        if self.is_cut_off or self.is_fenced or self.gone:
            return
        match message:
            case Ack(seqs):
                self._settle(seqs)
            case Heartbeat():
                pass
            case Refused(reason, seq, fatal):
                if fatal:
                    self.is_fenced, self._welcomed = True, False
                elif self._role == "worker":
                    self._settle([seq])
                else:
                    raise BrokenPromiseError(f"the buffer refuses {self.connection}: {reason}")
            case Welcome():
                self.epoch, self._welcomed = message.epoch, True
                self._take(message)
                self._repeat()
                doubled, self._doubled = self._doubled, []
                for seq, told in doubled:
                    self._line.post(self, seq, told)
            case _:
                self._take(message)

    def _settle(self, seqs: list[int]) -> None:
        for seq in seqs:
            self._outbox.pop(seq, None)
        if not self._outbox:
            waiting, self._when_settled = self._when_settled, []
            for action in waiting:
                action()

    def _repeat(self) -> None:
        if self._welcomed:
            for seq, message in list(self._outbox.items()):
                self._line.post(self, seq, message)
