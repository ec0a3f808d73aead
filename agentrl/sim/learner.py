"""The learner under virtual time: the production schedule, and what each of its steps takes.

It masks what the production lineage calls older than S, and `Truth` checks that mask against what
the engines really held.
"""

from collections.abc import Callable, Generator

import msgspec

from agentrl.learner.question import AskLease, AskPush, BufferQuestion
from agentrl.learner.schedule import (
    KEPT,
    End,
    EndSave,
    LoopSettings,
    Push,
    Save,
    SaveModel,
    Schedule,
    Settle,
    Step,
    StepAnswer,
    Tell,
    Train,
)
from agentrl.lineage import Lineage
from agentrl.sim.peer import SimPeer
from agentrl.sim.timeline import Timer
from agentrl.sim.truth import BrokenPromiseError, PublishedWeights
from agentrl.sim.world import World
from agentrl.types import LeaseHeader, VersionRow
from agentrl.wire.messages import (
    Lease,
    Message,
    NoMoreLeases,
    PushDone,
    PushGranted,
    Stepped,
    Welcome,
)

__all__ = ["Learner"]


class Learner:
    """One incarnation of the learner; `finished` is called when it is done."""

    def __init__(self, world: World, incarnation: int, finished: Callable[[], None]) -> None:
        self._world = world
        self._finished = finished
        self._lineage = Lineage()
        self._schedule: Schedule | None = None
        self._steps: Generator[Step, StepAnswer, None]
        self._question: BufferQuestion | None = None
        self._written: tuple[Save, float] | None = None
        self._asked_at = 0.0
        self._timer: Timer | None = None
        self._dead = False
        self.peer = SimPeer(world.shell, "learner", "learner-0", incarnation, self._take)

    def die(self) -> None:
        """The process ends, wherever it is; engines that wait for a push wait on."""
        self._dead = True
        if self._timer is not None:
            self._timer.cancel()
        self._world.shell.leave(self.peer)

    def _take(self, message: Message) -> None:
        if self._schedule is None:
            assert isinstance(message, Welcome)
            self._begin(message)
        elif self._question is not None:
            answer = self._question.hear(message, self._world.timeline.now)
            if answer is None:
                self._ask()
            else:
                self._question = None
                self._go_on(self._with_end(answer) if isinstance(answer, Lease) else answer)

    def _begin(self, welcome: Welcome) -> None:
        """Restore the newest checkpoint."""
        world = self._world
        for row in welcome.versions:
            self._lineage.add(row)
        settings = LoopSettings(
            update_weights_interval=world.scenario.update_weights_interval,
            save_interval=world.scenario.save_interval,
            asks_before_push=world.scenario.drain_before_push,
            writes_behind=world.scenario.writes_behind,
            max_staleness=world.scenario.max_staleness,
        )
        saved = world.checkpoints[-1] if world.checkpoints else None
        self._schedule = Schedule(
            settings, welcome.versions, saved, 1 + welcome.remade, welcome.stepped
        )
        first = self._schedule.newest
        if welcome.retired_through > first.iteration:
            raise BrokenPromiseError(
                f"leases up to {welcome.retired_through} are retired, and the checkpoint is of"
                f" iteration {first.iteration}"
            )
        world.truth.recovered(first)
        self._steps = self._schedule.steps()
        self._go_on(None)

    # ---- steps ----

    def _go_on(self, answer: StepAnswer = None) -> None:
        if not self._dead:
            self._carry_out(self._steps.send(answer))

    def _carry_out(self, step: Step) -> None:
        world = self._world
        match step:
            case AskLease(number):
                world.tally.reached(number - 1)
                self._asked_at = world.timeline.now
                if number > world.scenario.iterations:
                    self._go_on(NoMoreLeases(number - 1, "the run is long enough"))
                else:
                    self._question = BufferQuestion(step, world.timeline.now)
                    self._ask()
            case AskPush(version):
                world.when_idle(lambda: self._go_on(PushGranted(version)))
            case Train(header):
                self._train(header)
            case Tell(message):
                self._tell(message)
            case Settle():
                self.peer.when_settled(self._go_on)
            case Push(row):
                world.fleet.begin_push()
                self._later(world.scenario.learner.push_s, lambda: self._pushed(row))
            case Save() if world.scenario.writes_behind:
                self._written = step, world.timeline.now + world.scenario.learner.save_s
                self._go_on()
            case Save():
                self._later(world.scenario.learner.save_s, lambda: self._saved(step))
            case EndSave(waits):
                self._end_save(waits)
            case SaveModel():
                self._go_on()
            case End(iteration):
                world.tally.reached(iteration)
                self._finished()

    def _ask(self) -> None:
        assert self._question is not None
        message = self._question.due(self._world.timeline.now)
        if message is not None:
            self.peer.send(message)

    def _with_end(self, lease: Lease) -> Lease:
        is_last = lease.header.number >= self._world.scenario.iterations
        return Lease(msgspec.structs.replace(lease.header, last=is_last))

    def _tell(self, message: Message) -> None:
        if isinstance(message, PushDone):
            self._lineage.add(message.row)
        self.peer.deliver(message)
        self._go_on()

    def _train(self, header: LeaseHeader) -> None:
        self._world.shell.columns.check(header)
        tokens = sum(row.meta.num_sampled for g in header.groups for row in g.trajectories)
        wait_s = self._world.timeline.now - self._asked_at
        self._later(self._world.scenario.iteration_s(tokens), lambda: self._trained(header, wait_s))

    def _trained(self, header: LeaseHeader, wait_s: float) -> None:
        world, bound = self._world, self._world.scenario.max_staleness
        rows = [row for group in header.groups for row in group.trajectories]
        counts = [pair for row in rows for pair in row.meta.versions]
        ages = {v: self._lineage.checked_age(v, header.number) for v, _ in counts}
        world.truth.trained(header, {version for version, age in ages.items() if age <= bound})
        iteration_s = world.timeline.now - self._asked_at
        world.tally.trained(header, ages, wait_s, iteration_s - wait_s)
        old_share = self._lineage.old_share(counts, header.number, bound)
        self._go_on(Stepped(header.number, False, old_share, wait_s, iteration_s))

    def _pushed(self, row: VersionRow) -> None:
        weights = PublishedWeights(row.version, row.iteration)
        self._world.truth.pushed(weights, row.parent)
        self._world.fleet.end_push(weights)
        self._go_on({})

    def _end_save(self, waits: bool) -> None:
        assert self._written is not None
        save, due_at = self._written
        left_s = due_at - self._world.timeline.now
        if left_s <= 0:
            self._saved(save)
        elif waits:
            self._later(left_s, lambda: self._saved(save))
        else:
            self._go_on(False)

    def _saved(self, save: Save) -> None:
        checkpoints = self._world.checkpoints
        checkpoints.append(save)
        del checkpoints[:-KEPT]
        self._written = None
        self._go_on(True)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._timer = self._world.timeline.after(seconds, action)
