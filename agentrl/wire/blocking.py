"""`BufferPeer` for a thread that must not run an event loop: the learner's main thread trains.

A daemon thread runs an anyio loop with one BufferPeer in it; every call here crosses into that
loop, waits for its answer and raises its errors. Heartbeats and resends go on while the caller
computes. Leaving the `with` block ends the thread within `EXIT_S`.
"""

import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Required, Self, TypedDict, TypeVar, TypeVarTuple, Unpack

import anyio
from anyio.from_thread import BlockingPortal

from agentrl.clock import Clock
from agentrl.errors import FencedError, PeerLostError
from agentrl.types import EpisodeId
from agentrl.wire.frames import ColumnBuffer
from agentrl.wire.keys import CurveKeys
from agentrl.wire.messages import Message, Role, Welcome
from agentrl.wire.peer import BufferPeer, Received

__all__ = ["BlockingPeer", "PeerOptions"]

logger = logging.getLogger(__name__)

EXIT_S = 10.0

Args = TypeVarTuple("Args")
T = TypeVar("T")


class PeerOptions(TypedDict, total=False):
    """Keyword arguments of `BufferPeer`."""

    role: Required[Role]
    name: Required[str]
    incarnation: str | None
    running: Callable[[], list[EpisodeId]]
    on_fenced: Callable[[FencedError], None]
    keys: CurveKeys | None
    clock: Clock | None
    connect_timeout_s: float
    resend_s: float
    outbox_limit: int


class BlockingPeer:
    """`with BlockingPeer(address, role=..., name=...) as peer`; arguments as for `BufferPeer`.

    Calls come from one thread at a time, never from the peer's own.
    """

    def __init__(self, address: str, **options: Unpack[PeerOptions]) -> None:
        self._peer = BufferPeer(address, **options)
        self._entered: Future[BlockingPortal] = Future()
        self._crash: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"buffer-peer-{self._peer.name}", daemon=True
        )

    def __enter__(self) -> Self:
        """Connect and wait for Welcome; raises what entering a `BufferPeer` raises."""
        self._thread.start()
        self._portal = self._entered.result()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._portal.start_task_soon(self._portal.stop, True)
        except RuntimeError:
            logger.debug("%s: the loop of the peer had ended before", self._peer.name)
        self._thread.join(EXIT_S)
        if self._thread.is_alive():
            logger.error("%s: the peer thread did not end in %s s", self._peer.name, EXIT_S)

    @property
    def welcome(self) -> Welcome:
        """The last Welcome."""
        return self._peer.welcome

    def send(self, message: Message, columns: Sequence[ColumnBuffer] = ()) -> None:
        """See `BufferPeer.send`."""
        self._call(self._peer.send, message, columns)

    def deliver(self, message: Message, columns: Sequence[ColumnBuffer] = ()) -> int:
        """See `BufferPeer.deliver`."""
        return self._call(self._peer.deliver, message, columns)

    def flush(self, timeout_s: float) -> None:
        """See `BufferPeer.flush`."""
        self._call(self._peer.flush, timeout_s)

    def receive(self, timeout_s: float) -> Received:
        """The next message and its columns; TimeoutError when none comes within `timeout_s`.

        Else raises what `BufferPeer.receive` raises.
        """
        return self._call(self._receive, timeout_s)

    async def _receive(self, timeout_s: float) -> Received:
        with anyio.fail_after(timeout_s):
            return await self._peer.receive()

    def _call(self, function: Callable[[Unpack[Args]], Awaitable[T]], *args: *Args) -> T:
        try:
            future = self._portal.start_task_soon(function, *args)
        except RuntimeError as error:
            raise self._gone() from error
        try:
            return future.result()
        except CancelledError:
            raise self._gone() from self._crash

    def _gone(self) -> PeerLostError:
        return PeerLostError(
            f"{self._peer.name}: the loop that speaks to the buffer has ended"
            + (f": {self._crash!r}" if self._crash else "")
        )

    def _run(self) -> None:
        try:
            anyio.run(self._main)
        except BaseException as error:
            self._crash = error
            if self._entered.done():
                logger.exception("%s: the loop that speaks to the buffer died", self._peer.name)
            else:
                self._entered.set_exception(error)

    async def _main(self) -> None:
        # the peer outside: the portal's task group would wrap its errors on entry
        async with self._peer, BlockingPortal() as portal:
            self._entered.set_result(portal)
            await portal.sleep_until_stopped()
