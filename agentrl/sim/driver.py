"""The driver and its feeder: tasks for credit, the news of lost processes, the drain at the end."""

from agentrl.sim.peer import SimPeer
from agentrl.sim.world import World
from agentrl.types import Task
from agentrl.wire.messages import Drain, Message, PeerLost, TaskCredit, Tasks

__all__ = ["SimDriver"]


class SimDriver:
    """A task source without end; the id of a task is its position."""

    def __init__(self, world: World) -> None:
        self.peer = SimPeer(world.shell, "driver", "driver", 0, self._take)

    def lost(self, peer: SimPeer, *, failed: bool = False) -> None:
        """This process has ended; `failed`: by itself."""
        self.peer.deliver(PeerLost(peer.name, peer.incarnation, failed))

    def drain(self) -> None:
        """No more tasks; what is not leased is cancelled."""
        self.peer.deliver(Drain("the run is long enough"))

    def _take(self, message: Message) -> None:
        if isinstance(message, TaskCredit):
            cursor = message.cursor + message.num_tasks
            tasks = [Task(str(position), {}) for position in range(message.cursor, cursor)]
            self.peer.deliver(Tasks(tasks, cursor))
