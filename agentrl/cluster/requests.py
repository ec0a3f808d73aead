"""`Requests`: what the driver has asked the buffer and has no answer to yet.

A buffer that restarted has forgotten what it owes: on its new Welcome all of it is asked again.
"""

import uuid
from collections.abc import Callable

from agentrl.cluster.events import RunState
from agentrl.wire.messages import Barrier, Message
from agentrl.wire.peer import BufferPeer

__all__ = ["Requests"]


class Requests:
    """The driver's questions, by key; a newer one takes the place of an older."""

    def __init__(self, peer: BufferPeer, state: RunState) -> None:
        self._peer = peer
        self._state = state
        self._open: dict[str, Message] = {}

    async def tell(self, message: Message) -> None:
        """Say something that has no answer."""
        await self._peer.deliver(message)

    async def ask(self, key: str, message: Message) -> None:
        """Ask, and again of each new buffer, until it is answered or dropped."""
        self._open[key] = message
        await self._peer.deliver(message)

    async def answered(self, key: str, condition: Callable[[RunState], bool]) -> None:
        """Wait for the answer, which makes `condition` true."""
        await self._state.wait(condition)
        self.drop(key)

    def drop(self, key: str) -> None:
        """No answer is wanted any more."""
        self._open.pop(key, None)

    async def ask_again(self) -> None:
        """The buffer is another now."""
        for message in list(self._open.values()):
            await self._peer.deliver(message)

    async def catch_up(self) -> None:
        """Wait until every event of the buffer up to now is in."""
        barrier = Barrier(uuid.uuid4().hex)
        await self.ask(barrier.id, barrier)
        await self.answered(barrier.id, lambda state: barrier.id in state.echoes)
