"""Sockets between the buffer and its peers; the only importer of zmq.

`RouterSocket` is the buffer's end, `DealerSocket` a peer's. Both move lists of frames and know
nothing of messages. `ipc://` is plain (one host, private directory); `tcp://` always carries CURVE,
and the router's ZAP handler admits only the client key of the run.

Nothing queues without bound: high-water marks and linger are set, and a dealer that is not
connected queues nothing at all (ZMQ_IMMEDIATE), so what a lost connection held is known to be lost.
zmq's descriptor is edge-triggered; every operation here is a non-blocking call on the plain socket
followed by a look at its events through the asyncio socket, which re-arms waiting tasks. Receiving
is therefore safe to cancel: a message is taken only when it is returned.
"""

import logging
from typing import Self

import anyio
import zmq
import zmq.asyncio
import zmq.auth.asyncio
from typing_extensions import Buffer
from zmq.utils import z85

from agentrl.errors import ConfigError, EnvironmentSetupError
from agentrl.wire.frames import MAX_MESSAGE_BYTES
from agentrl.wire.keys import CurveKeys

__all__ = ["DealerSocket", "RouterSocket"]

logger = logging.getLogger(__name__)

#: sun_path holds 107 bytes on Linux; zmq needs some for its own suffixes.
MAX_IPC_PATH = 100
HIGH_WATER_MARK = 1024
LINGER_MS = 1000
RECONNECT_MS, RECONNECT_MAX_MS = 100, 1000
#: A half-open connection is cut after this silence of the other side's zmq threads.
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2000, 10_000
HANDSHAKE_MS = 10_000
_ZAP_DOMAIN = b"agentrl"


class _Socket:
    """What both ends share: options, non-blocking moves, waiting, and a bounded close."""

    def __init__(self, address: str, keys: CurveKeys | None, max_bytes: int) -> None:
        self.address = address
        self._keys = _keys_for(address, keys)
        self._max_bytes = max_bytes

    def _open(self, kind: int) -> None:
        self._context = zmq.asyncio.Context()
        self._waiting = self._context.socket(kind)
        self._plain: zmq.Socket[bytes] = zmq.Socket.shadow(self._waiting.underlying)
        for option, value in (
            (zmq.SNDHWM, HIGH_WATER_MARK),
            (zmq.RCVHWM, HIGH_WATER_MARK),
            (zmq.MAXMSGSIZE, self._max_bytes),
            (zmq.LINGER, LINGER_MS),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
            (zmq.IPV6, int("[" in self.address)),
        ):
            self._plain.set(option, value)

    def _try_send(self, frames: list[Buffer]) -> bool:
        try:
            self._plain.send_multipart(frames, zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return False
        finally:
            self._rearm()
        return True

    def _try_recv(self) -> list[memoryview] | None:
        try:
            parts = self._plain.recv_multipart(zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return None
        finally:
            self._rearm()
        return [part.buffer for part in parts]

    async def _recv(self) -> list[memoryview]:
        while (parts := self._try_recv()) is None:
            await _ready(self._waiting, zmq.POLLIN)
        return parts

    def _rearm(self) -> None:
        self._waiting.get(zmq.EVENTS)

    async def _close(self) -> None:
        self._waiting.close(LINGER_MS)
        with anyio.CancelScope(shield=True):
            # bounded by the linger: term() waits for nothing else once the sockets are closed
            await anyio.to_thread.run_sync(self._context.term)


class RouterSocket(_Socket):
    """The buffer's end: binds, and speaks to each connected peer by its identity."""

    def __init__(
        self,
        address: str,
        *,
        keys: CurveKeys | None = None,
        max_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """`address` is ipc://PATH or tcp://HOST:PORT (PORT * for any; see `.address` once bound).

        Raises ConfigError for any other address, an ipc path over 100 characters, or tcp without
        keys.
        """
        super().__init__(address, keys, max_bytes)
        self._gate: zmq.auth.asyncio.AsyncioAuthenticator | None = None

    async def __aenter__(self) -> Self:
        """Bind. Raises EnvironmentSetupError when the address cannot be bound."""
        self._open(zmq.ROUTER)
        self._plain.set(zmq.ROUTER_MANDATORY, 1)
        self._plain.set(zmq.ROUTER_HANDOVER, 1)
        if self._keys is not None:
            self._admit_only(self._keys)
        try:
            self._plain.bind(self.address)
        except zmq.ZMQError as error:
            await self._shut()
            raise EnvironmentSetupError(f"cannot bind {self.address}: {error}") from error
        self.address = self._plain.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._shut()

    async def recv(self) -> tuple[bytes, list[memoryview]]:
        """The next message: the sender's identity and its frames."""
        identity, *frames = await self._recv()
        return bytes(identity), frames

    def recv_many(self, limit: int) -> list[tuple[bytes, list[memoryview]]]:
        """Up to `limit` messages that have come already; waits for none."""
        messages: list[tuple[bytes, list[memoryview]]] = []
        while len(messages) < limit and (parts := self._try_recv()) is not None:
            messages.append((bytes(parts[0]), parts[1:]))
        return messages

    def send(self, identity: bytes, frames: list[bytes | memoryview]) -> bool:
        """Queue `frames` for a peer. False: it is not connected or its queue is full; nothing was
        queued, and nobody waits for a stalled peer."""
        try:
            return self._try_send([identity, *frames])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False

    def _admit_only(self, keys: CurveKeys) -> None:
        self._plain.set(zmq.CURVE_SERVER, 1)
        self._plain.set(zmq.CURVE_SECRETKEY, z85.encode(keys.server_secret))
        self._plain.set(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)
        self._gate = zmq.auth.asyncio.AsyncioAuthenticator(self._context, log=logger)
        self._gate.configure_curve_callback(
            _ZAP_DOMAIN.decode(), _AllowList(frozenset({_public(keys.client_secret)}))
        )
        self._gate.start()

    async def _shut(self) -> None:
        if self._gate is not None:
            self._gate.stop()
        await self._close()


class DealerSocket(_Socket):
    """A peer's end: connects, reconnects by itself, and tells when the connection broke."""

    def __init__(
        self,
        address: str,
        *,
        identity: bytes,
        keys: CurveKeys | None = None,
        max_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """`identity` (1..255 bytes, the first not 0) names this peer at the router across
        reconnects. Raises ConfigError as `RouterSocket` does."""
        super().__init__(address, keys, max_bytes)
        self._identity = identity

    async def __aenter__(self) -> Self:
        """Start connecting. Raises ConfigError when the address has no valid form."""
        self._open(zmq.DEALER)
        self._plain.set(zmq.ROUTING_ID, self._identity)
        self._plain.set(zmq.IMMEDIATE, 1)
        self._plain.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._plain.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        if self._keys is not None:
            self._plain.set(zmq.CURVE_SERVERKEY, _public(self._keys.server_secret))
            self._plain.set(zmq.CURVE_PUBLICKEY, _public(self._keys.client_secret))
            self._plain.set(zmq.CURVE_SECRETKEY, z85.encode(self._keys.client_secret))
        self._monitor = self._waiting.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            self._plain.connect(self.address)
        except zmq.ZMQError as error:
            await self._shut()
            raise ConfigError(f"cannot connect to {self.address}: {error}") from error
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._shut()

    def try_send(self, frames: list[bytes | memoryview]) -> bool:
        """Queue `frames`. False: not connected, or the queue is full; nothing was queued."""
        return self._try_send([*frames])

    async def send(self, frames: list[bytes | memoryview]) -> None:
        """Queue `frames` as soon as there is a connection with room."""
        while not self.try_send(frames):
            await self.writable()

    async def recv(self) -> list[memoryview]:
        """The frames of the next message."""
        return await self._recv()

    async def writable(self) -> None:
        """Wait until there is a connection with room in its queue."""
        await _ready(self._waiting, zmq.POLLOUT)

    async def disconnected(self) -> None:
        """Wait until a connection breaks. Each break is told once."""
        await _ready(self._monitor, zmq.POLLIN)
        await self._monitor.recv_multipart()

    async def _shut(self) -> None:
        self._waiting.disable_monitor()
        self._monitor.close(0)
        await self._close()


class _AllowList:
    """The shape that pyzmq's authenticator asks for a decision on a client's public key."""

    def __init__(self, allowed: frozenset[bytes]) -> None:
        self._allowed = allowed

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self._allowed


async def _ready(socket: zmq.asyncio.Socket, events: int) -> None:
    poller = zmq.asyncio.Poller()
    poller.register(socket, events)
    await poller.poll()


def _public(secret: bytes) -> bytes:
    return zmq.curve_public(z85.encode(secret))


def _keys_for(address: str, keys: CurveKeys | None) -> CurveKeys | None:
    scheme, _, rest = address.partition("://")
    if scheme == "ipc":
        if len(rest) > MAX_IPC_PATH:
            raise ConfigError(
                f"the socket path {rest} has {len(rest)} characters, the system allows "
                f"{MAX_IPC_PATH}: use a shorter --run-dir"
            )
        return None
    if scheme != "tcp":
        raise ConfigError(f"{address}: only ipc:// and tcp:// addresses are spoken")
    if keys is None:
        raise ConfigError(f"{address}: tcp needs the CURVE keys of the run, plain tcp is refused")
    return keys
