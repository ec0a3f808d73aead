"""The feeder: answers the buffer's task credit from the task source, by cursor."""

import logging
from collections.abc import AsyncIterator

import anyio

from agentrl.envs.depth import require_shallow
from agentrl.types import Task, TaskSource
from agentrl.wire.messages import TaskCredit, Tasks
from agentrl.wire.peer import BufferPeer

__all__ = ["Feeder"]

_LOG = logging.getLogger(__name__)


class Feeder:
    """Sends tasks for credit once opened. A cursor that jumps (restart) re-opens the source there.

    A source that raises ends the run: its error names the row, and no group is minted for it. So
    does a row that is nested too deeply.
    """

    def __init__(self, source: TaskSource, peer: BufferPeer) -> None:
        self._source = source
        self._peer = peer
        self._opened = anyio.Event()
        self._tasks: AsyncIterator[Task] | None = None
        self._cursor = 0
        self._credits_in, self._credits_out = anyio.create_memory_object_stream[TaskCredit](64)

    def open(self) -> None:
        """Let tasks flow."""
        self._opened.set()

    async def credit(self, credit: TaskCredit) -> None:
        """Take credit from the buffer."""
        await self._credits_in.send(credit)

    async def run(self) -> None:
        """Answer credit until cancelled."""
        await self._opened.wait()
        async for credit in self._credits_out:
            await self._peer.deliver(await self._answer(credit))

    async def _answer(self, credit: TaskCredit) -> Tasks:
        if self._tasks is None or credit.cursor != self._cursor:
            self._cursor = credit.cursor
            self._tasks = self._source.tasks(credit.cursor)
        tasks: list[Task] = []
        while len(tasks) < credit.num_tasks:
            task = await anext(self._tasks, None)
            if task is None:
                _LOG.info("the task source is exhausted at cursor %s", self._cursor + len(tasks))
                break
            require_shallow(task.row, f"the row of task {task.id}")
            tasks.append(task)
        self._cursor += len(tasks)
        return Tasks(tasks, self._cursor, exhausted=len(tasks) < credit.num_tasks)
