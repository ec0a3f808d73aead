"""A peer of the buffer: a socket, two tasks that carry out the rules of `conversation`, an inbox.

One task reads, one acts when something is due. Messages of `deliver` reach the buffer at least once
and, over one connection, first in order; messages of `send` at most once. The owner sees every
Welcome but the first, so that it can announce again what it had sent unacknowledged.

`receive` must run beside `deliver`: when the owner takes nothing, the inbox fills, reading stops,
and with it the Acks.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import anyio

from agentrl.clock import Clock, MonotonicClock
from agentrl.errors import FencedError, FrameError, PeerLostError, ProtocolVersionError
from agentrl.types import EpisodeId
from agentrl.wire.conversation import Conversation
from agentrl.wire.frames import ColumnBuffer, decode, encode, require_encodable
from agentrl.wire.keys import CurveKeys
from agentrl.wire.messages import Ack, Envelope, Message, Refused, Role, Welcome
from agentrl.wire.outbox import Outbox
from agentrl.wire.transport import DealerSocket

__all__ = ["BufferPeer"]

logger = logging.getLogger(__name__)

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
        self._on_fenced = on_fenced
        self._clock = clock or MonotonicClock()
        self._connect_timeout_s = connect_timeout_s
        self._socket = DealerSocket(
            address, identity=f"{name}.{self.incarnation}".encode()[-255:], keys=keys
        )
        outbox = Outbox(outbox_limit, resend_s)
        self._talk = Conversation(
            role, name, self.incarnation, running, outbox, connect_timeout_s, address
        )
        self._failure: Exception | None = None
        self._changed = anyio.Event()
        self._nudge = anyio.Event()

    async def __aenter__(self) -> Self:
        """Connect and wait for Welcome.

        Raises PeerLostError after `connect_timeout_s` without one, FencedError when the buffer
        says that this process must exit, ProtocolVersionError when it runs other code.
        """
        self._talk.begin(self._clock.now())
        self._inbox, self._taken = anyio.create_memory_object_stream[Received](INBOX_LIMIT)
        await self._socket.__aenter__()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            for task in (self._read, self._act, self._watch):
                self._tasks.start_soon(task)
            await self._until(lambda: self._talk.is_welcomed)
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
        assert self._talk.welcome is not None, "the peer has not been entered"
        return self._talk.welcome

    @property
    def unacked(self) -> int:
        """Messages in the outbox."""
        return len(self._talk.outbox)

    async def send(self, message: Message, columns: Sequence[ColumnBuffer] = ()) -> None:
        """Send once, as soon as there is a welcomed connection with room.

        Raises PeerLostError when there is none for `connect_timeout_s`, FrameError when the
        message is too large.
        """
        with anyio.move_on_after(self._connect_timeout_s):
            while True:
                await self._until(lambda: self._talk.is_welcomed)
                if self._transmit(message, columns):
                    return
                await self._socket.writable()
        raise PeerLostError(
            f"{self.name}: the buffer took no {type(message).__name__} for "
            f"{self._connect_timeout_s:g} s"
        )

    def offer(self, message: Message, columns: Sequence[ColumnBuffer] = ()) -> bool:
        """Send now or not at all; whether it was sent. Raises FrameError when it is too large."""
        return self._talk.is_welcomed and self._transmit(message, columns)

    async def deliver(self, message: Message, columns: Sequence[ColumnBuffer] = ()) -> int:
        """Put into the outbox, to be sent until the buffer has it; returns its sequence number.

        Waits while the outbox is full. `columns` must not change before the Ack. Raises FrameError
        when the message is too large, PeerLostError and FencedError as `receive` does.
        """
        require_encodable(message, columns)  # refuse now what could never be sent
        await self._until(lambda: not self._talk.outbox.full)
        seq = self._talk.outbox.add(message, columns)
        self._nudge.set()
        return seq

    async def flush(self, timeout_s: float) -> None:
        """Wait until every delivered message is settled; PeerLostError after `timeout_s`."""
        with anyio.move_on_after(timeout_s):
            await self._until(lambda: not self.unacked)
            return
        raise PeerLostError(
            f"{self.name}: the buffer has not acknowledged {self.unacked} messages within "
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
        self._talk.is_welcomed = False
        self._inbox.close()
        self._notify()

    def _lose(self, why: str) -> None:
        self._talk.lose(self._clock.now(), why)
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
            self._talk.heard(self._clock.now())
            await self._take(envelope.body, columns)

    async def _take(self, message: Message, columns: list[memoryview]) -> None:
        try:
            is_for_owner = self._talk.take(message)
        except FencedError as error:
            self._fail(error)
            self._on_fenced(error)
            return
        if isinstance(message, Ack | Refused | Welcome):
            self._notify()
        if isinstance(message, Refused):
            reason, seq = message.reason, message.seq
            logger.warning("%s: the buffer refused message %s: %s", self.name, seq, reason)
        if is_for_owner:
            await self._hand_over(message, columns)

    async def _hand_over(self, message: Message, columns: list[memoryview]) -> None:
        if self._failure is not None:  # nobody takes what was on its way in
            return
        try:
            self._inbox.send_nowait((message, columns))
        except anyio.WouldBlock:
            logger.warning("%s: %s messages wait for the owner", self.name, INBOX_LIMIT)
            self._talk.is_held_back = True
            await self._inbox.send((message, columns))
            self._talk.is_held_back = False
            self._talk.heard(self._clock.now())

    async def _act(self) -> None:
        while self._failure is None:
            self._nudge = anyio.Event()
            now = self._clock.now()
            try:
                is_blocked = not self._say_what_is_due(now)
            except PeerLostError as error:
                self._fail(error)
                return
            with anyio.move_on_after(self._talk.next_due(is_blocked=is_blocked) - now):
                await (self._socket.writable() if is_blocked else self._nudge.wait())

    def _say_what_is_due(self, now: float) -> bool:
        """False: the socket takes no more."""
        while (pending := self._talk.due(now)) is not None:
            if not self._transmit(pending.message, pending.columns, pending.seq):
                return False
            self._talk.said(pending, now)
        return True

    def _transmit(
        self, message: Message, columns: Sequence[ColumnBuffer] = (), seq: int = 0
    ) -> bool:
        frames = encode(Envelope(self._talk.epoch, seq, message), columns)
        if not self._socket.try_send(frames):
            return False
        self._talk.spoke(self._clock.now())
        return True
