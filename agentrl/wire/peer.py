"""A peer's conversation with the buffer: hello, heartbeats, resends, reconnects.

    CONNECTING -> WELCOMED <-> LOST -> (deadline) FAILED
                      any state -> (fenced) FAILED

Owns the socket, the outbox and two tasks: one reads, one acts when something is due. Messages of
`deliver` reach the buffer at least once and, over one connection, first in order; messages of
`send` at most once. While LOST only Hello is spoken; on Welcome everything unsettled goes out
again under the new epoch, and the owner sees that Welcome so that it can announce again what it
had sent unacknowledged.

What this expects of the buffer: a Hello with a known incarnation is answered with the same epoch;
messages of an identity that has not said Hello are ignored; a Heartbeat is answered with one.

`receive` must run beside `deliver`: when the owner takes nothing, the inbox fills, reading stops,
and with it the Acks.
"""

import logging
import math
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import anyio

from agentrl.clock import Clock, MonotonicClock
from agentrl.errors import FencedError, FrameError, PeerLostError, ProtocolVersionError
from agentrl.types import EpisodeId
from agentrl.wire.frames import ColumnBuffer, decode, encode, require_encodable
from agentrl.wire.keys import CurveKeys
from agentrl.wire.messages import (
    Ack,
    Envelope,
    Finished,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Role,
    Welcome,
)
from agentrl.wire.outbox import Outbox
from agentrl.wire.transport import DealerSocket

__all__ = ["BufferPeer"]

logger = logging.getLogger(__name__)

HELLO_S = 1.0
#: Heartbeats of silence after which the buffer counts as lost.
MAX_SILENT_BEATS = 3
INBOX_LIMIT = 4096

Received = tuple[Message, list[memoryview]]


class BufferPeer:
    """One per worker, learner rank or driver process. `async with BufferPeer(...) as peer`.

    `name` is the peer's place in the run, the same after a restart; each object is a new
    incarnation of it, as the process was told or of a random name. `running` is asked, at every
    Hello, which episodes still play here; finished ones whose report waits for its Ack are added to
    them, so that none is played twice. `on_fenced` hears at once that this process was replaced, in
    the peer's own loop; everybody else hears it at their next call.
    """

    def __init__(
        self,
        address: str,
        *,
        role: Role,
        name: str,
        incarnation: str | None = None,
        running: Callable[[], list[EpisodeId]] = list,
        on_fenced: Callable[[FencedError], None] = lambda error: None,
        keys: CurveKeys | None = None,
        clock: Clock | None = None,
        connect_timeout_s: float = 60.0,
        resend_s: float = 2.0,
        outbox_limit: int = 1024,
    ) -> None:
        """Times are in seconds. Raises ConfigError for an address that cannot be used."""
        assert resend_s > 0
        assert outbox_limit > 0
        self.role = role
        self.name = name
        self.incarnation = incarnation or uuid.uuid4().hex
        self._running = running
        self._on_fenced = on_fenced
        self._clock = clock or MonotonicClock()
        self._connect_timeout_s = connect_timeout_s
        self._socket = DealerSocket(
            address, identity=f"{name}.{self.incarnation}".encode()[-255:], keys=keys
        )
        self._outbox = Outbox(outbox_limit, resend_s)
        self._welcome: Welcome | None = None
        self._welcomed = False
        self._failure: Exception | None = None
        self._changed = anyio.Event()
        self._nudge = anyio.Event()
        self._lost_at = self._hello_at = 0.0
        self._heard_at = self._spoke_at = self._beat_at = -math.inf
        self._held_back = False

    async def __aenter__(self) -> Self:
        """Connect and wait for Welcome.

        Raises PeerLostError after `connect_timeout_s` without one, FencedError when the buffer
        says that this process must exit, ProtocolVersionError when it runs other code.
        """
        self._lost_at = self._hello_at = self._clock.now()
        self._inbox, self._taken = anyio.create_memory_object_stream[Received](INBOX_LIMIT)
        await self._socket.__aenter__()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            for task in (self._read, self._act, self._watch):
                self._tasks.start_soon(task)
            await self._until(lambda: self._welcomed)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._fail(PeerLostError(f"{self.name} has left the buffer"))
        self._tasks.cancel_scope.cancel()
        cancelled = isinstance(exc, anyio.get_cancelled_exc_class())
        try:
            # the group would wrap the body's own error; it gets only a cancellation to settle
            await self._tasks.__aexit__(*((exc_type, exc, traceback) if cancelled else (None,) * 3))
        finally:
            self._taken.close()
            await self._socket.__aexit__(None, None, None)

    @property
    def welcome(self) -> Welcome:
        """The last Welcome."""
        assert self._welcome is not None, "the peer has not been entered"
        return self._welcome

    @property
    def unacked(self) -> int:
        """Messages in the outbox."""
        return len(self._outbox)

    def _unsettled(self) -> list[EpisodeId]:
        """Episodes that the buffer need not give to anyone else."""
        reported = [
            message.report.id
            for message in self._outbox.messages()
            if isinstance(message, Finished)
        ]
        return [*self._running(), *reported]

    async def send(self, message: Message, columns: Sequence[ColumnBuffer] = ()) -> None:
        """Send once, as soon as there is a welcomed connection with room.

        Raises PeerLostError when there is none for `connect_timeout_s`, FrameError when the
        message is too large.
        """
        with anyio.move_on_after(self._connect_timeout_s):
            while True:
                await self._until(lambda: self._welcomed)
                if self._transmit(message, columns):
                    return
                await self._socket.writable()
        raise PeerLostError(
            f"{self.name}: the buffer took no {type(message).__name__} for "
            f"{self._connect_timeout_s:g} s"
        )

    def offer(self, message: Message, columns: Sequence[ColumnBuffer] = ()) -> bool:
        """Send now or not at all; whether it was sent. Raises FrameError when it is too large."""
        return self._welcomed and self._transmit(message, columns)

    async def deliver(self, message: Message, columns: Sequence[ColumnBuffer] = ()) -> int:
        """Put into the outbox, to be sent until the buffer has it; returns its sequence number.

        Waits while the outbox is full. `columns` must not change before the Ack. Raises FrameError
        when the message is too large, PeerLostError and FencedError as `receive` does.
        """
        require_encodable(message, columns)  # refuse now what could never be sent
        await self._until(lambda: not self._outbox.full)
        seq = self._outbox.add(message, columns)
        self._nudge.set()
        return seq

    async def flush(self, timeout_s: float) -> None:
        """Wait until every delivered message is settled; PeerLostError after `timeout_s`."""
        with anyio.move_on_after(timeout_s):
            await self._until(lambda: not len(self._outbox))
            return
        raise PeerLostError(
            f"{self.name}: the buffer has not acknowledged {len(self._outbox)} messages within "
            f"{timeout_s:g} s"
        )

    async def receive(self) -> Received:
        """The next message for the owner, and its columns.

        Raises FencedError when this process must exit, PeerLostError when the buffer has been
        silent for `connect_timeout_s` beyond its heartbeats, ProtocolVersionError.
        """
        self._check()
        try:
            return await self._taken.receive()
        except anyio.EndOfStream:
            self._check()
            raise

    # ---- state -----------------------------------------------------------------------------------

    async def _until(self, ready: Callable[[], bool]) -> None:
        while True:
            self._check()
            if ready():
                return
            await self._changed.wait()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _notify(self) -> None:
        """Wake whoever waits for a state, and the acting task."""
        self._changed.set()
        self._changed = anyio.Event()
        self._nudge.set()

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._welcomed = False
        self._inbox.close()
        self._notify()

    def _lose(self, why: str) -> None:
        if not self._welcomed or self._failure is not None:
            return
        logger.info("%s: no word from the buffer (%s): saying hello again", self.name, why)
        self._welcomed = False
        self._lost_at = self._hello_at = self._clock.now()
        self._notify()

    # ---- tasks -----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await self._socket.disconnected()
            self._lose("the connection broke")

    async def _read(self) -> None:
        while self._failure is None:
            frames = await self._socket.recv()
            try:
                envelope, columns = decode(frames)
            except ProtocolVersionError as error:
                self._fail(error)
                return
            except FrameError as error:
                # what it said is unknown: a new Welcome brings both sides back in step
                logger.warning("%s: a message of the buffer is dropped: %s", self.name, error)
                self._lose("a damaged message")
                continue
            self._heard_at = self._clock.now()
            await self._take(envelope.body, columns)

    async def _take(self, message: Message, columns: list[memoryview]) -> None:
        match message:
            case Heartbeat():
                return
            case Ack(seqs=seqs):
                self._outbox.settle(seqs)
                self._notify()
                return
            case Refused(reason=reason, fatal=True):
                fenced = FencedError(f"{self.name} must exit, the buffer says: {reason}")
                self._fail(fenced)
                self._on_fenced(fenced)
                return
            case Refused(reason=reason, seq=seq):
                logger.warning("%s: the buffer refused message %s: %s", self.name, seq, reason)
                self._outbox.settle([seq])
                self._notify()
            case Welcome():
                known, self._welcome = self._welcome, message
                self._welcomed = True
                self._outbox.rewind()
                self._notify()
                if known is None:
                    return
            case _:
                pass
        await self._hand_over(message, columns)

    async def _hand_over(self, message: Message, columns: list[memoryview]) -> None:
        if self._failure is not None:  # nobody takes what was on its way in
            return
        try:
            self._inbox.send_nowait((message, columns))
        except anyio.WouldBlock:
            logger.warning("%s: %s messages wait for the owner", self.name, INBOX_LIMIT)
            self._held_back = True
            await self._inbox.send((message, columns))
            self._held_back = False
            self._heard_at = self._clock.now()

    async def _act(self) -> None:
        while self._failure is None:
            self._nudge = anyio.Event()
            now = self._clock.now()
            blocked, deadline = self._converse(now) if self._welcomed else self._greet(now)
            with anyio.move_on_after(deadline - now):
                await (self._socket.writable() if blocked else self._nudge.wait())

    def _greet(self, now: float) -> tuple[bool, float]:
        """Say Hello when due; whether the socket is blocked, and when to act again."""
        give_up = self._lost_at + self._connect_timeout_s
        if now >= give_up:
            self._fail(
                PeerLostError(
                    f"{self.name}: no Welcome from the buffer at {self._socket.address} for "
                    f"{self._connect_timeout_s:g} s: is it running, and with the keys of this run?"
                )
            )
        elif now >= self._hello_at:
            hello = Hello(self.role, self.name, self.incarnation, self._unsettled())
            if not self._transmit(hello):
                return True, give_up
            self._hello_at = now + HELLO_S
        return False, min(self._hello_at, give_up)

    def _converse(self, now: float) -> tuple[bool, float]:
        """Send what is due to a buffer that knows us; returns what `_greet` returns."""
        beat_s = self.welcome.heartbeat_s
        silent_at = math.inf if self._held_back else self._heard_at + MAX_SILENT_BEATS * beat_s
        if now >= silent_at:
            self._lose(f"silent for {now - self._heard_at:.1f} s")
            return self._greet(now)
        while (pending := self._outbox.due(now)) is not None:
            if not self._transmit(pending.message, pending.columns, pending.seq):
                return True, silent_at
            self._outbox.mark_sent(pending.seq, now)
        if now >= self._beat_due(beat_s):
            if not self._transmit(Heartbeat()):
                return True, silent_at
            self._beat_at = now
        resend_at = self._outbox.next_due()
        return False, min(
            silent_at, self._beat_due(beat_s), math.inf if resend_at is None else resend_at
        )

    def _beat_due(self, beat_s: float) -> float:
        """One beat after either side last spoke, but at most one Heartbeat a beat."""
        return max(min(self._spoke_at, self._heard_at), self._beat_at) + beat_s

    def _transmit(
        self, message: Message, columns: Sequence[ColumnBuffer] = (), seq: int = 0
    ) -> bool:
        if not self._socket.try_send(self._frames(message, columns, seq)):
            return False
        self._spoke_at = self._clock.now()
        return True

    def _frames(
        self, message: Message, columns: Sequence[ColumnBuffer], seq: int = 0
    ) -> list[bytes | memoryview]:
        epoch = self._welcome.epoch if self._welcome else 0
        return encode(Envelope(epoch, seq, message), columns)
