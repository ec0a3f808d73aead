"""What a network may do between the buffer and its peers, message by message.

    peers -> front (router socket) -> [ repeat | hold | break ] -> back (one dealer for each peer)

`repeat`  every message comes twice, the second time after up to WINDOW others
`hold`    nothing passes in one direction, or in both; what waits passes when it heals
`broken`  connections are cut, and what they carried is lost

The proxy runs in a loop of its own thread and copies frames without reading them.
"""

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentrl.wire.transport import DealerSocket, RouterSocket

__all__ = ["WINDOW", "Direction", "Proxy"]

#: How many messages a repetition may come late by.
WINDOW = 64
Direction = Literal["in", "out"]
_Frames = list[bytes | memoryview]


class Proxy:
    """Stands at `front` for the buffer at `back`. `with Proxy(...)`; calls from any thread."""

    def __init__(self, front: str, back: str, seed: int) -> None:
        self._front_address, self._back_address = front, back
        self._random = random.Random(seed)
        self._portal_cm = start_blocking_portal("asyncio")
        self._portal: BlockingPortal
        self._repeated: frozenset[Direction] = frozenset()
        self._late: dict[Direction, list[tuple[bytes, _Frames]]] = {"in": [], "out": []}
        self._held: dict[Direction, deque[tuple[bytes, _Frames]]] = {}
        self._backs: dict[bytes, DealerSocket] = {}
        self._life: anyio.CancelScope
        self.num_repeated = 0
        self.num_held = 0

    def __enter__(self) -> Self:
        self._portal = self._portal_cm.__enter__()
        self._connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._disconnect()
        self._portal_cm.__exit__(None, None, None)

    def repeat(self, *directions: Direction) -> None:
        """From now on every message in these directions comes twice."""
        self._repeated = frozenset(directions)

    @contextmanager
    def holding(self, *directions: Direction) -> Iterator[None]:
        """Nothing passes in these directions within it; what came then passes at its end."""
        self._portal.call(self._hold, directions)
        try:
            yield
        finally:
            self._portal.call(self._release)

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Within it there are no connections."""
        self._disconnect()
        try:
            yield
        finally:
            self._connect()

    # ---- in the loop ----

    def _connect(self) -> None:
        self._serving, _ = self._portal.start_task(self._serve)

    def _disconnect(self) -> None:
        self._portal.call(self._end_life)
        self._serving.result(30)

    async def _end_life(self) -> None:
        self._life.cancel()

    async def _hold(self, directions: tuple[Direction, ...]) -> None:
        self._held = {direction: deque() for direction in directions}

    async def _release(self) -> None:
        held, self._held = self._held, {}
        for direction, waiting in held.items():
            for identity, frames in waiting:
                self._deliver(direction, identity, frames)

    async def _serve(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope() as self._life:
            async with RouterSocket(self._front_address) as self._front:
                try:
                    async with anyio.create_task_group() as self._readers:
                        task_status.started()
                        await self._read_front()
                finally:
                    self._late = {"in": [], "out": []}

    async def _read_front(self) -> None:
        while True:
            identity, frames = await self._front.recv()
            if identity not in self._backs:
                await self._readers.start(self._read_back, identity)
            self._pass("in", identity, list(frames))

    async def _read_back(self, identity: bytes, *, task_status: TaskStatus[None]) -> None:
        async with DealerSocket(self._back_address, identity=identity) as back:
            self._backs[identity] = back
            task_status.started()
            try:
                while True:
                    self._pass("out", identity, list(await back.recv()))
            finally:
                del self._backs[identity]

    def _pass(self, direction: Direction, identity: bytes, frames: _Frames) -> None:
        if direction in self._held:
            self._held[direction].append((identity, frames))
            self.num_held += 1
            return
        self._deliver(direction, identity, frames)
        if direction not in self._repeated:
            return
        late = self._late[direction]
        late.append((identity, [bytes(frame) for frame in frames]))
        if len(late) > WINDOW:
            self._deliver(direction, *late.pop(self._random.randrange(len(late))))
            self.num_repeated += 1

    def _deliver(self, direction: Direction, identity: bytes, frames: _Frames) -> None:
        """As far as a connection takes it: one that is gone takes nothing."""
        if direction == "out":
            self._front.send(identity, frames)
        elif identity in self._backs:
            self._backs[identity].try_send(frames)
