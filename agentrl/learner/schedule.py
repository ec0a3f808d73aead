"""The learner's order: lease, iterate, publish, save, retire. Pure: no rank, no peer, no clock.

    PUBLISHING(v) -> WAITING(k) -> TRAINING(k) -> [PUBLISHING(v + 1)] -> [SAVING -> RETIRING] -+
                       ^  |            | it is the last                                        |
                       |  +------------+--> [PUBLISHING] -> SAVING -> RETIRING -> DONE         |
                       +-------------------------- k + 1 --------------------------------------+

`Schedule.steps` yields what is to be done next and is sent what came of it. Exactly-once training
rests on this order:

    a lease is reported before a version that contains it is announced
    a version is announced, and its announcement committed, before its push begins
    what a checkpoint rests on is committed before it is begun
    the buffer forgets what a checkpoint on disk covers; while the run goes on, what the one before
    covers, so that it can fall back to that one

Where learner and engines share devices (`shares_devices`), the engines have no memory from a lease
to its push. So a push is asked for before its lease is trained, checkpoints are written before it,
and the run ends with a push:

    WAITING(k) -> ASKING -> TRAINING(k) -> [SAVING -> RETIRING] -> PUBLISHING(v + 1) -> k + 1
                               | it is the last
                               +-> SAVING -> PUBLISHING(v + 1) -> RETIRING -> DONE

A checkpoint may be written while the run goes on (`writes_behind`): Save begins it. EndSave asks
after each iteration whether it is whole, and waits for it before the next one is begun and at the
end. Nothing is retired before the checkpoint that covers it is whole:

    SAVING(k) -> TRAINING(k + 1) -> whole? -> [RETIRING] -> TRAINING(k + 2) -> ...

Weights for evaluations that are apart (`evaluates`) are written right after they are published.

A learner that begins publishes first. Only where it has to train more iterations once more than a
token may be old, and by the same recipe, it trains these first: whatever the restored weights
sampled would be too old, and engines that are there hold better ones.

Between its first publish and its end an engine that came late may ask for the weights again. A
request to stop is honoured between iterations: the last weights are saved, not published.
"""

from collections.abc import Generator, Sequence
from typing import Protocol

import msgspec

from agentrl.eval_weights import EvalWeightsDue
from agentrl.learner.question import Answer, AskLease, AskPush, StopRequested
from agentrl.types import LeaseHeader, VersionRow
from agentrl.wire.messages import (
    AnnounceVersion,
    EvalWeightsSaved,
    Lease,
    Message,
    NoMoreLeases,
    PushDone,
    Republish,
    Retire,
    Stepped,
)

__all__ = [
    "KEPT",
    "End",
    "EndSave",
    "LoopSettings",
    "Push",
    "Save",
    "SaveEvalWeights",
    "SaveModel",
    "Saved",
    "Schedule",
    "Settle",
    "Step",
    "StepAnswer",
    "Tell",
    "Train",
]

#: Checkpoints of a run that are kept: the newest, and one to fall back to.
KEPT = 2


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`has_engines`: somebody generates; else a version is a number alone. `asks_before_push`: a
    push waits for the buffer's word. `keeps_models`: one is written beside every checkpoint.
    `shares_devices`: with the engines, which sleep while it trains; every iteration is pushed.
    `writes_behind`: a checkpoint is written while the run goes on. `max_staleness`: iterations that
    a token may be old. `evaluates`: weights that are written for evaluations apart."""

    update_weights_interval: int
    save_interval: int
    has_engines: bool = True
    asks_before_push: bool = False
    keeps_models: bool = False
    shares_devices: bool = False
    writes_behind: bool = False
    max_staleness: int = 0
    evaluates: EvalWeightsDue | None = None


class Train(msgspec.Struct, frozen=True):
    """Iterate over a lease; the answer is its report."""

    header: LeaseHeader


class Tell(msgspec.Struct, frozen=True):
    """Deliver to the buffer."""

    message: Message


class Settle(msgspec.Struct, frozen=True):
    """Wait until the buffer has committed all that it was told."""


class Push(msgspec.Struct, frozen=True):
    """Give the engines the current weights as this version; the answer is what it cost."""

    row: VersionRow


class Save(msgspec.Struct, frozen=True):
    """Write a checkpoint; durable when it is answered. With `writes_behind` it is begun. `recipe`:
    of the iterations since the newest version."""

    iteration: int
    version: int
    recipe: int


class EndSave(msgspec.Struct, frozen=True):
    """Ask whether the checkpoint that was begun is whole; the answer is a bool. `waits`: wait until
    it is."""

    waits: bool


class SaveModel(msgspec.Struct, frozen=True):
    """Write the model."""

    iteration: int


class SaveEvalWeights(msgspec.Struct, frozen=True):
    """Write the model of a version for an evaluation."""

    row: VersionRow


class End(msgspec.Struct, frozen=True):
    """Nothing is left to do."""

    iteration: int
    version: int
    reason: str


_Written = SaveModel | SaveEvalWeights
Step = AskLease | AskPush | Train | Tell | Settle | Push | Save | EndSave | _Written | End
StepAnswer = Answer | Stepped | dict[str, float] | bool | None
_Steps = Generator[Step, StepAnswer, None]


class Saved(Protocol):
    """A checkpoint: iterations done, the newest version at that moment, and the recipe of the
    iterations since that one."""

    @property
    def iteration(self) -> int: ...

    @property
    def version(self) -> int: ...

    @property
    def recipe(self) -> int: ...


class Schedule:
    """One learner process, from its first publish on. `newest`: the version that engines have or
    are about to be given."""

    def __init__(
        self,
        settings: LoopSettings,
        versions: Sequence[VersionRow],
        saved: Saved | None,
        recipe: int = 0,
        stepped: int = 0,
    ) -> None:
        """`versions`: all that the run has announced or published, in order; `saved`: its newest
        whole checkpoint; `recipe`: what this process trains by; `stepped`: the last lease that was
        trained before it."""
        self._settings = settings
        self._recipe = recipe
        self.newest = _first_row(versions, saved, recipe)
        self._done = self._saved = self.newest.iteration
        self._is_unpublished = True
        self._first_publish = self._done
        if _is_same_again(versions, self.newest):
            reached = max(stepped, *(row.iteration for row in versions))
            if reached - self._done > settings.max_staleness and not settings.shares_devices:
                self._first_publish = reached
        self._covered = 0
        self._before = self.newest.iteration if versions else None
        self._evaluated: VersionRow | None = None
        self._being_written: int | None = None

    def steps(self) -> _Steps:
        """What to do, in order; the last is End."""
        if self._is_caught_up:
            yield from self._publish(self.newest)
        while True:
            answer = yield AskLease(self._done + 1)
            match answer:
                case Republish():
                    yield from self._republish()
                case Lease(header):
                    if self._settings.shares_devices and not (yield from self._may_push()):
                        answer = StopRequested()
                        break
                    yield from self._iterate(header)
                    if header.last:
                        answer = NoMoreLeases(self._done, "the last lease is trained")
                        break
                    if self._settings.shares_devices:
                        yield from self._publish_next()
                    elif self._is_to_save():
                        yield from self._checkpoint()
                case _:
                    break
        assert isinstance(answer, NoMoreLeases | StopRequested)
        yield from self._finish(answer)

    def _iterate(self, header: LeaseHeader) -> _Steps:
        report = yield Train(header)
        assert isinstance(report, Stepped)
        self._done = header.number
        yield Tell(report)
        yield from self._end_save(waits=False)
        if self._settings.shares_devices:
            if self._is_to_save() and not header.last:
                yield from self._checkpoint()
        elif not self._is_caught_up:
            pass
        elif self._is_unpublished:
            yield from self._publish_next()
        elif self._done % self._settings.update_weights_interval == 0:
            yield from self._publish_in_turn()

    def _publish_in_turn(self) -> Generator[Step, StepAnswer, bool]:
        """As `_publish_next`, once nobody minds; False after a request to stop. What mends the run
        (its first push, and one for a late engine) waits for nothing."""
        if may_push := (yield from self._may_push()):
            yield from self._publish_next()
        return may_push

    def _may_push(self) -> Generator[Step, StepAnswer, bool]:
        if not self._settings.asks_before_push:
            return True
        answer = yield AskPush(self.newest.version + 1)
        while isinstance(answer, Republish) and self._settings.shares_devices:
            # The push is not next: an engine that lacks weights would lack them for a whole step.
            yield from self._republish()
            answer = yield AskPush(self.newest.version + 1)
        return not isinstance(answer, StopRequested)

    def _publish_next(self) -> _Steps:
        row = VersionRow(self.newest.version + 1, self.newest.version, self._done, self._recipe)
        if self._is_unpublished:
            row = msgspec.structs.replace(self.newest, iteration=self._done)
        yield from self._publish(row)

    def _republish(self) -> _Steps:
        """Give engines that came late the newest weights. What was trained since the last publish
        is another version; what was not goes out again under its own number."""
        if self._is_unpublished or self.newest.iteration < self._done:
            yield from self._publish_next()
        elif self._settings.has_engines:
            yield Push(self.newest)

    def _publish(self, row: VersionRow) -> _Steps:
        """Give the engines these weights, under a number that is theirs alone even if this process
        dies in the push. Where no engine holds weights, the number is all there is."""
        costs: StepAnswer = {}
        if self._settings.has_engines:
            yield Tell(AnnounceVersion(row))
            yield Settle()
            costs = yield Push(row)
        assert isinstance(costs, dict)
        self.newest, self._is_unpublished = row, False
        yield Tell(PushDone(row, through=row.iteration, metrics=costs))
        yield from self._save_for_evaluation(row)

    def _save_for_evaluation(self, row: VersionRow, *, is_last: bool = False) -> _Steps:
        """Write these weights if they are to be evaluated and are not written yet."""
        is_due, before = self._settings.evaluates, self._before
        self._before = row.iteration
        if is_due and row != self._evaluated and (is_last or is_due(before, row.iteration)):
            self._evaluated = row
            yield SaveEvalWeights(row)
            yield Tell(EvalWeightsSaved(row))

    @property
    def _is_caught_up(self) -> bool:
        """Whether nothing is left that is trained once more before it is published."""
        return self._done >= self._first_publish

    @property
    def _published(self) -> int:
        """The newest version that was published, by whomever."""
        before = self.newest.parent if self._is_unpublished else None
        return self.newest.version if before is None else before

    def _is_to_save(self) -> bool:
        return self._done % self._settings.save_interval == 0

    def _checkpoint(self) -> _Steps:
        yield from self._save()
        if self._being_written is None:
            yield from self._retire()
        if self._settings.keeps_models:
            yield SaveModel(self._done)

    def _save(self) -> _Steps:
        yield from self._end_save(waits=True)
        yield Settle()
        yield Save(self._done, self._published, self._recipe)
        if self._settings.writes_behind:
            self._being_written = self._done
        else:
            self._is_whole(self._done)

    def _end_save(self, *, waits: bool, retires: bool = True) -> _Steps:
        """Ask after the checkpoint that is being written, if there is one."""
        if self._being_written is None:
            return
        answer = yield EndSave(waits)
        if answer:
            self._is_whole(self._being_written)
            self._being_written = None
            if retires:
                yield from self._retire()

    def _is_whole(self, iteration: int) -> None:
        if iteration > self._saved:
            self._covered, self._saved = self._saved, iteration

    def _retire(self) -> _Steps:
        if self._covered:
            yield Tell(Retire(self._covered))

    def _finish(self, end: NoMoreLeases | StopRequested) -> _Steps:
        """Publish what is trained but unpublished, save, and let the buffer forget. A request to
        stop publishes nothing, since engines may be ending, and leaves the checkpoint before."""
        shares_devices = self._settings.shares_devices
        is_behind = self._is_unpublished or self.newest.iteration < self._done
        if isinstance(end, NoMoreLeases) and is_behind and not shares_devices:
            is_published = yield from self._publish_in_turn()
            end = end if is_published else StopRequested()
        is_over = isinstance(end, NoMoreLeases)
        if is_over and not self._is_unpublished:
            yield from self._save_for_evaluation(self.newest, is_last=True)
        if self._done:  # else nothing was learnt
            yield from self._save()
            yield SaveModel(self._done)
            yield from self._end_save(waits=True, retires=False)
            if is_over and shares_devices:
                yield from self._republish()  # saving took the engines' memory
            through = self._done if is_over else self._covered
            if through:
                yield Tell(Retire(through))
        yield Settle()
        reason = end.reason if isinstance(end, NoMoreLeases) else "the learner was asked to stop"
        yield End(self._done, self._published, reason)


def _first_row(versions: Sequence[VersionRow], saved: Saved | None, recipe: int) -> VersionRow:
    """The version under which a learner publishes the weights that it begins with.

    no versions yet     version 0, iteration 0            the run begins
    a checkpoint of c   next version, iteration c         what came after c is trained again
    versions, none      next version, iteration 0         it died before its first checkpoint

    Iterations between the newest version of a checkpoint and the checkpoint are of its recipe.
    """
    if not versions:
        return VersionRow(0, None, 0, recipe)
    version = max(row.version for row in versions) + 1
    if saved is None:
        return VersionRow(version, versions[0].version, 0, recipe)
    held = next((row.iteration for row in versions if row.version == saved.version), None)
    same = held == saved.iteration or saved.recipe == recipe
    return VersionRow(version, saved.version, saved.iteration, recipe if same else 0)


def _is_same_again(versions: Sequence[VersionRow], first: VersionRow) -> bool:
    """Whether what was published since `first` was trained by its recipe, and so will be again."""
    since = [row for row in versions if row.iteration > first.iteration]
    return first.recipe != 0 and bool(since) and all(row.recipe == first.recipe for row in since)
