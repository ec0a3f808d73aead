"""A small buffer behind a real socket, that may die, go silent or refuse, and a worker of it."""

from collections.abc import Callable
from typing import Self

import anyio
from anyio.abc import TaskStatus

from agentrl.errors import FencedError
from agentrl.types import EpisodeId
from agentrl.wire.frames import decode, encode
from agentrl.wire.messages import Ack, Envelope, Heartbeat, Hello, Message, Welcome
from agentrl.wire.peer import BufferPeer
from agentrl.wire.transport import RouterSocket

BEAT_S = 0.4


class ScriptedBuffer:
    """What a peer may expect of a buffer. `committed` and `epochs` survive a `die`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.epochs: dict[str, int] = {}
        self.hellos: list[Hello] = []
        self.committed: list[int] = []
        self.columns: dict[int, list[bytes]] = {}
        self.num_repeated = 0
        self.said: list[Message] = []
        self.peers: list[bytes] = []
        self.acking = True
        self.mute = False
        self.answers: dict[type[Message], Message] = {}
        self.heard = anyio.Event()

    async def __aenter__(self) -> Self:
        self.lives = await anyio.create_task_group().__aenter__()
        await self.live()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()
        await self.lives.__aexit__(None, None, None)

    async def live(self) -> None:
        """Answer until `die`."""
        self.peers.clear()
        self.dead = anyio.Event()
        await self.lives.start(self._serve)

    async def die(self) -> None:
        """What is in flight is lost, as after SIGKILL."""
        self.life.cancel()
        await self.dead.wait()

    async def _serve(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope() as self.life:
            async with RouterSocket(self.address) as self.router:
                task_status.started()
                await self._run()
        self.dead.set()

    @property
    def num_taken(self) -> int:
        return len(self.committed) + self.num_repeated

    async def until_heard(self, kind: type[Message]) -> None:
        while not any(isinstance(message, kind) for message in self.said):
            await self.heard.wait()

    async def say(self, message: Message, columns: list[bytes] | None = None) -> None:
        epoch = max(self.epochs.values())
        assert self.router.send(self.peers[-1], encode(Envelope(epoch, 0, message), columns or []))

    def _reply(self, message: Message) -> None:
        """To a peer that may have left meanwhile."""
        epoch = max(self.epochs.values())
        self.router.send(self.peers[-1], encode(Envelope(epoch, 0, message), []))

    async def say_raw(self, frames: list[bytes | memoryview]) -> None:
        assert self.router.send(self.peers[-1], frames)

    async def _run(self) -> None:
        while True:
            identity, frames = await self.router.recv()
            envelope, columns = decode(frames)
            if not self.mute:
                await self._answer(identity, envelope, columns)

    async def _answer(self, identity: bytes, envelope: Envelope, columns: list[memoryview]) -> None:
        match envelope.body:
            case Hello() as hello:
                self.hellos.append(hello)
                self.peers.append(identity)
                epoch = self.epochs.setdefault(hello.incarnation, len(self.epochs) + 1)
                self._reply(self.answers.get(Hello, Welcome(epoch, BEAT_S)))
                return
            case _ if identity not in self.peers:
                return
            case Heartbeat():
                self._reply(Heartbeat())
                return
            case body:
                self.said.append(body)
        if envelope.seq:
            assert envelope.epoch == max(self.epochs.values())
            self._commit(envelope.seq, columns)
        if type(envelope.body) in self.answers:
            self._reply(self.answers[type(envelope.body)])
        elif envelope.seq and self.acking:
            self._reply(Ack([envelope.seq]))
        self.heard.set()
        self.heard = anyio.Event()

    def _commit(self, seq: int, columns: list[memoryview]) -> None:
        if seq in self.columns:
            self.num_repeated += 1
            return
        self.committed.append(seq)
        self.columns[seq] = [bytes(column) for column in columns]


def worker(
    buffer: ScriptedBuffer,
    *,
    resend_s: float = 0.2,
    timeout_s: float = 20,
    on_fenced: Callable[[FencedError], None] = lambda error: None,
) -> BufferPeer:
    return BufferPeer(
        buffer.address,
        role="worker",
        name="worker-0",
        running=lambda: [EpisodeId("g", 1)],
        on_fenced=on_fenced,
        resend_s=resend_s,
        connect_timeout_s=timeout_s,
        outbox_limit=8,
    )
