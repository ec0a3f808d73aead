"""The driver of a lab, in a thread of the test: production's feeder and view of the run.

It restarts nothing by itself: that is the test's to order, so that every end of a process is one
that the test knows of.
"""

import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentrl.cluster.events import RunState
from agentrl.cluster.feeder import Feeder
from agentrl.types import Task
from agentrl.wire.messages import (
    Barrier,
    Drain,
    Event,
    Message,
    Refused,
    Republish,
    TaskCredit,
    Welcome,
)
from agentrl.wire.peer import BufferPeer

__all__ = ["Driving"]


class _Endless:
    """Tasks 0, 1, 2, ...: each has its position for a name. `cursor`: where the next one is."""

    def __init__(self) -> None:
        self.cursor = 0

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        while True:
            self.cursor = cursor + 1
            yield Task(f"t{cursor}", {"name": f"task {cursor}"})
            cursor += 1


class Driving:
    """A conversation with the buffer at `address`. `with Driving(address) as driving`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._portal_cm = start_blocking_portal("asyncio")
        self._portal: BlockingPortal
        self._source = _Endless()
        self.state = RunState()
        self._num_asked = 0
        self.events: list[Event] = []
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._portal = self._portal_cm.__enter__()
        self._task = self._portal.start_task_soon(self._serve)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._task.cancel()
        self._portal_cm.__exit__(None, None, None)

    def tell(self, message: Message) -> None:
        """Say something that the buffer must hear."""
        self._portal.call(self._deliver, message)

    def ask_for_weights(self) -> None:
        """Have the learner publish again, as the driver does for an engine that came back."""
        self._num_asked += 1
        self.tell(Republish(self._num_asked))

    async def _deliver(self, message: Message) -> None:
        await self._peer.deliver(message)

    def drain(self, reason: str, *, resumable: bool = False) -> None:
        """Ask the buffer to end; `state.drained` says when it has."""
        self.tell(Drain(reason, resumable))

    def echo(self) -> RunState:
        """The state of the run, when all that the buffer has told so far is in it."""
        return self.in_loop(self._echo)  # type: ignore[no-any-return]

    async def _echo(self) -> RunState:
        echo = Barrier(uuid.uuid4().hex)
        await self._peer.deliver(echo)
        with anyio.fail_after(300):
            await self.state.wait(lambda state: echo.id in state.echoes)
        return self.state

    @property
    def cursor(self) -> int:
        """Tasks handed to the buffer so far."""
        return self._source.cursor

    def is_lost(self, name: str) -> bool:
        """Whether the buffer's last word on a peer is that it has fallen silent."""
        told = [e.data["state"] for e in self.events if e.kind == "peer" and e.data["name"] == name]
        return told[-1:] == ["lost"]

    def in_loop(self, function: Any, *args: Any) -> Any:
        """Call an async function in this thread's loop."""
        return self._portal.call(function, *args)

    async def _serve(self) -> None:
        try:
            async with (
                BufferPeer(self._address, role="driver", name="driver") as self._peer,
                anyio.create_task_group() as group,
            ):
                self.state.continue_from(self._peer.welcome)
                feeder = Feeder(self._source, self._peer)
                group.start_soon(feeder.run)
                feeder.open()
                await self._receive(feeder)
        except Exception as error:
            self.failure = error
            raise

    async def _receive(self, feeder: Feeder) -> None:
        while True:
            message, _ = await self._peer.receive()
            match message:
                case TaskCredit():
                    await feeder.credit(message)
                case Event():
                    self.events.append(message)
                    self.state.apply(message)
                case Welcome():
                    self.state.reconcile(message)
                    if self._num_asked:
                        await self._peer.deliver(Republish(self._num_asked))
                case Refused(reason):
                    raise AssertionError(f"the buffer refused the driver: {reason}")
