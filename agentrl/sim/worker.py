"""An agent worker: it plays what the buffer assigns, and scores.

The model of `agentrl.actors.worker`. A worker that dies takes its episodes along; the buffer hears
of it from the driver, or by its silence.
"""

from agentrl.serving.permit_queue import PermitQueue
from agentrl.sim.episode import SimEpisode
from agentrl.sim.peer import SimPeer
from agentrl.sim.world import World
from agentrl.types import EpisodeAssignment, EpisodeId, EpisodeReport
from agentrl.wire.messages import (
    Assign,
    Cancel,
    Capacity,
    Finished,
    GroupScore,
    Message,
    NewWeights,
    ScoreGroup,
    Welcome,
)

__all__ = ["SimWorker"]

#: Least seconds between two reports of room and permits. A real worker tells them with every
#: episode, which the buffer adds up to the same.
ANNOUNCE_S = 10.0


class SimWorker:
    """One incarnation of a worker process."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        scenario = world.scenario
        self._world = world
        self._playing: dict[EpisodeId, SimEpisode] = {}
        self._announced_at = 0.0
        self.permits = PermitQueue(scenario.permits_per_worker, world.timeline.now)
        self.peer = SimPeer(world.shell, "worker", name, incarnation, self._take, self.running)

    def die(self) -> None:
        """The process ends; engines drop its turns."""
        for episode in list(self._playing.values()):
            episode.stop()
        self._world.left(len(self._playing))
        self._playing.clear()
        self._world.shell.leave(self.peer)

    def running(self) -> list[EpisodeId]:
        """Episodes being played."""
        return list(self._playing)

    def _take(self, message: Message) -> None:
        match message:
            case Welcome():
                self._announce()
            case Assign(episodes):
                for assignment in episodes:
                    if assignment.id not in self._playing:
                        self._begin(assignment)
            case Cancel(episodes):
                for id in episodes:
                    episode = self._playing.pop(id, None)
                    if episode is not None:
                        episode.stop()
                        self._world.left(1)
            case NewWeights():
                for episode in self._playing.values():
                    episode.new_weights()
            case ScoreGroup():
                scoring_s = self._world.scenario.scoring_s
                self._world.timeline.after(scoring_s, lambda: self._score(message))

    def _begin(self, assignment: EpisodeAssignment) -> None:
        plan = self._world.plan(assignment.task, assignment.id.index)
        episode = SimEpisode(self._world, self.permits, assignment, plan, self._ended)
        self._playing[assignment.id] = episode
        self._world.entered()
        episode.begin()

    def _ended(self, report: EpisodeReport) -> None:
        del self._playing[report.id]
        self.peer.deliver(Finished(report))
        if self._world.timeline.now >= self._announced_at + ANNOUNCE_S:
            self._announce()
        self._world.left(1)

    def _announce(self) -> None:
        self._announced_at = now = self._world.timeline.now
        room = self._world.scenario.max_concurrent_episodes
        self.peer.send(Capacity(room, self.permits.stats(now)))

    def _score(self, order: ScoreGroup) -> None:
        if self.peer.gone:
            return
        share = self._world.scenario.faults.filtered_share
        keep = not self._world.befalls(share, f"filter {order.group}")
        rewards = [summary.reward for summary in order.episodes]
        self.peer.deliver(GroupScore(order.group, rewards, keep, "" if keep else "filtered"))
