"""The learner: lease, iterate, publish, save, retire, in the order of `agentrl.learner.loop`.

    RESTORING -> PUBLISHING -> WAITING(k) -> TRAINING(k) -> [PUBLISHING] -> [SAVING] -> k + 1
                                                                               | k is the last
                                                                               +-> DONE

A version is announced before its push, and what a push or a checkpoint rests on is committed before
it begins. The learner masks what the production lineage calls older than S, and `Truth` checks that
mask against what the engines really held.
"""

from collections.abc import Callable

from agentrl.lineage import Lineage
from agentrl.sim.peer import Peer
from agentrl.sim.timeline import Timer
from agentrl.sim.truth import BrokenPromiseError, Weights
from agentrl.sim.world import KEPT, Checkpoint, World
from agentrl.types import LeaseHeader, VersionRow
from agentrl.wire.messages import (
    Lease,
    LeaseRequest,
    Message,
    Published,
    Publishing,
    Retire,
    Stepped,
    Welcome,
)

__all__ = ["Learner"]


class Learner:
    """One incarnation of the learner; `finished` is called when the last lease is retired."""

    def __init__(self, world: World, incarnation: int, finished: Callable[[], None]) -> None:
        self._world = world
        self._finished = finished
        self._lineage = Lineage()
        self._number = 0
        self._waiting: int | None = None
        self._asked_at = 0.0
        self._newest_save = 0
        self._begun = False
        self._timer: Timer | None = None
        self._dead = False
        self.peer = Peer(world.shell, "learner", "learner-0", incarnation, self._take)

    def die(self) -> None:
        """The process ends, wherever it is; engines that wait for a push wait on."""
        self._dead = True
        if self._timer is not None:
            self._timer.cancel()
        self._world.shell.leave(self.peer)

    def _take(self, message: Message) -> None:
        if isinstance(message, Welcome):
            if not self._begun:
                self._begin(message)
            elif self._waiting is not None:
                self.peer.send(LeaseRequest(self._waiting))
        elif isinstance(message, Lease) and self._waiting is not None:
            number = message.header.number
            if number > self._waiting:
                raise BrokenPromiseError(f"lease {number} came while lease {self._waiting} is due")
            if number == self._waiting:
                self._train(message.header)

    # ---- beginning ----

    def _begin(self, welcome: Welcome) -> None:
        """Restore the newest checkpoint and publish it, under the version after the newest."""
        self._begun = True
        for row in welcome.versions:
            self._lineage.add(row)
        saved = self._world.checkpoints[-1] if self._world.checkpoints else None
        if saved is not None:
            row = VersionRow(self._lineage.newest + 1, saved.version, saved.iteration)
        elif welcome.versions:
            row = VersionRow(self._lineage.newest + 1, welcome.versions[0].version, 0)
        else:
            row = VersionRow(0, None, 0)
        if welcome.retired_through > row.iteration:
            raise BrokenPromiseError(
                f"leases up to {welcome.retired_through} are retired, and the checkpoint is of"
                f" iteration {row.iteration}"
            )
        self._number = self._newest_save = row.iteration
        self._world.truth.recovered(row.iteration)
        self._publish(row, self._next)

    # ---- an iteration ----

    def _next(self) -> None:
        world = self._world
        world.tally.reached(self._number)
        if self._number >= world.scenario.iterations:
            self._finish()
            return
        self._waiting = self._number + 1
        self._asked_at = world.timeline.now
        self.peer.send(LeaseRequest(self._waiting))

    def _train(self, header: LeaseHeader) -> None:
        self._waiting = None
        self._world.shell.columns.check(header)
        tokens = sum(row.meta.num_sampled for g in header.groups for row in g.trajectories)
        wait_s = self._world.timeline.now - self._asked_at
        self._later(self._world.scenario.iteration_s(tokens), lambda: self._trained(header, wait_s))

    def _trained(self, header: LeaseHeader, wait_s: float) -> None:
        world, number = self._world, header.number
        ages = self._ages(header)
        bound = world.scenario.max_staleness
        world.truth.trained(header, {version for version, age in ages.items() if age <= bound})
        old_share = self._old_share(header)
        iteration_s = world.timeline.now - self._asked_at
        world.tally.trained(header, ages, wait_s, iteration_s - wait_s)
        self.peer.deliver(Stepped(number, False, old_share, wait_s, iteration_s))
        self._number = number
        if number % world.scenario.update_weights_interval == 0:
            if world.scenario.drain_before_push:
                world.when_idle(self._publish_next)
            else:
                self._publish_next()
        else:
            self._save_if_due()

    def _ages(self, header: LeaseHeader) -> dict[int, int]:
        """Age of every version of which there is a token."""
        rows = [row for group in header.groups for row in group.trajectories]
        versions = {version for row in rows for version, _ in row.meta.versions}
        return {v: self._lineage.checked_age(v, header.number) for v in versions}

    def _old_share(self, header: LeaseHeader) -> float:
        rows = [row for group in header.groups for row in group.trajectories]
        counts = [pair for row in rows for pair in row.meta.versions]
        return self._lineage.old_share(counts, header.number, self._world.scenario.max_staleness)

    # ---- publishing and saving ----

    def _publish_next(self) -> None:
        if self._dead:
            return
        version = self._lineage.newest
        self._publish(VersionRow(version + 1, version, self._number), self._save_if_due)

    def _publish(self, row: VersionRow, then: Callable[[], None]) -> None:
        def push() -> None:
            self._world.fleet.begin_push()
            self._later(self._world.scenario.learner.push_s, pushed)

        def pushed() -> None:
            weights = Weights(row.version, row.iteration)
            self._world.truth.pushed(weights, row.parent)
            self._world.fleet.end_push(weights)
            self._lineage.add(row)
            self.peer.deliver(Published(row, row.iteration))
            then()

        self.peer.deliver(Publishing(row))
        self.peer.when_settled(push)

    def _save_if_due(self) -> None:
        is_last = self._number >= self._world.scenario.iterations
        if not is_last and self._number % self._world.scenario.save_interval == 0:
            save_s = self._world.scenario.learner.save_s
            self.peer.when_settled(lambda: self._later(save_s, self._saved))
        else:
            self._next()

    def _saved(self) -> None:
        covered, self._newest_save = self._newest_save, self._number
        self._save()
        if covered:
            self.peer.deliver(Retire(covered))
        self._next()

    def _save(self) -> None:
        checkpoints = self._world.checkpoints
        checkpoints.append(Checkpoint(self._number, self._lineage.newest))
        del checkpoints[:-KEPT]

    def _finish(self) -> None:
        tip = self._lineage.tip
        assert tip is not None
        if tip.iteration < self._number:
            version = tip.version
            self._publish(VersionRow(version + 1, version, self._number), self._next)
            return
        self.peer.when_settled(self._end)

    def _end(self) -> None:
        self._save()
        self.peer.deliver(Retire(self._number))
        self._finished()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._timer = self._world.timeline.after(seconds, action)
