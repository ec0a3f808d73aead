"""A life of the core with evaluations, and the same life without them: training sees no difference.

Lives are random: reports of every outcome, scores, leases, recoveries, pushes, reconnects, losses
of workers, a buffer that is restarted, evaluations of every sort beside it all. Then the
evaluations are erased (what spoke of them becomes a heartbeat) and another core is told the rest.

Two things are shared and have an effect: the room of workers, so these have enough; and what takes
a worker down is looked for among all that it held, so none is lost that holds an evaluation.
"""

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.buffer import BufferCore, BufferSettings
from agentrl.buffer.events import Effect, FromPeer, Notify, Persist, Send, Stored, Tick
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import LeaseRow, LedgerState, Row
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    Outcome,
    PayloadRef,
    SamplingParams,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.wire.messages import (
    Ack,
    AnnounceVersion,
    Assign,
    Cancel,
    Capacity,
    Drain,
    Evaluate,
    Finished,
    GroupScore,
    Heartbeat,
    Hello,
    Lease,
    LeaseRequest,
    MayPush,
    Message,
    PeerLost,
    PushDone,
    PushGranted,
    Refused,
    Retire,
    ScoreGroup,
    Stepped,
    TaskCredit,
    Tasks,
    Welcome,
)

pytestmark = pytest.mark.slow

WORKERS = ("w0", "w1", "w2")
OUTCOMES = [Outcome.DONE] * 8 + [o for o in Outcome if o is not Outcome.DONE]
#: Events that an evaluation causes, or is counted in.
OF_EVALUATIONS = ("evaluation", "failures")


class Restart(msgspec.Struct, frozen=True):
    """The core is lost, and another one reads its rows."""


Happening = FromPeer | Stored | Tick | Restart


class Worker:
    def __init__(self) -> None:
        self.incarnation = 1
        self.playing: dict[EpisodeId, EpisodeAssignment] = {}
        self.orders: list[ScoreGroup] = []


class Cores:
    """A core on a real ledger, which may be lost."""

    def __init__(self, config: BufferSettings, folder: Path) -> None:
        self._settings = config
        self._ledger = Ledger(folder / "ledger.db")
        self._rows: list[Row] = []
        self._core = BufferCore(config)
        self.effects: list[list[Effect]] = []

    def take(self, event: Happening, now: float) -> list[Effect]:
        self.effects.append(self._effects(event, now))
        return self.effects[-1]

    def _effects(self, event: Happening, now: float) -> list[Effect]:
        if isinstance(event, Restart):
            self._ledger.commit(self._rows)
            self._rows.clear()
            state: LedgerState = self._ledger.load()
            self._core = BufferCore(self._settings, state, now)
            return []
        effects = self._core.handle(event, now)
        self._rows += [effect.row for effect in effects if isinstance(effect, Persist)]
        return effects

    def wants(self, event: FromPeer) -> bool:
        return self._core.wants(event)


class Life:
    """Peers that do what chance says, as far as they may."""

    def __init__(self, rng: random.Random, cores: Cores) -> None:
        self.rng = rng
        self.cores = cores
        self.now = 0.0
        self.trace: list[tuple[Happening, float]] = []
        self.epochs: dict[str, int] = {}
        self.workers = {name: Worker() for name in WORKERS}
        self.learner = self.lease = self.stepped = self.retired = self.offset = self.orders = 0
        self.version = -1
        self.credit: TaskCredit | None = None

    def live(self, steps: int) -> None:
        self.join("driver", "driver")
        self.learner_starts()
        for name in WORKERS:
            self.worker_starts(name)
        deeds: list[Callable[[], None]] = [
            self.offer, self.plays, self.plays, self.plays, self.plays,
            self.scores_groups, self.scores_groups, self.trains, self.trains, self.evaluates,
            self.asks_to_push, self.waits,
        ]  # fmt: skip
        rare = [self.reconnects, self.worker_starts_again, self.learner_starts, self.restarts]
        for _ in range(steps):
            self.rng.choice(rare if self.rng.random() < 0.06 else deeds)()
        self.say("driver.1", Drain("the end", resumable=self.rng.random() < 0.5))

    # ---- the wire ----

    def do(self, event: Happening) -> None:
        self.now += self.rng.choice([0.0, 0.1, 0.5])
        self.trace.append((event, self.now))
        for effect in self.cores.take(event, self.now):
            if isinstance(effect, Send):
                self.hear(effect.peer, effect.message)

    def hear(self, peer: str, message: Message) -> None:
        worker = self.workers.get(peer.partition(".")[0], Worker())
        match message:
            case Welcome():
                self.epochs[peer] = message.epoch
            case TaskCredit():
                self.credit = message
            case Assign(episodes):
                worker.playing |= {each.id: each for each in episodes}
            case Cancel(ids):
                for id in ids:
                    worker.playing.pop(id, None)
            case ScoreGroup():
                worker.orders.append(message)
            case Lease(header):
                self.lease = header.number

    def say(self, peer: str, message: Message) -> None:
        self.do(FromPeer(peer, self.epochs.get(peer, 0), 1, message))

    def join(self, name: str, role: Any, incarnation: int = 1, running: Any = ()) -> None:
        hello = Hello(role, name, str(incarnation), list(running))
        self.do(FromPeer(f"{name}.{incarnation}", 0, 0, hello))

    # ---- deeds ----

    def offer(self) -> None:
        if self.credit is not None:
            first, count = self.credit.cursor, self.rng.randint(1, self.credit.num_tasks)
            self.credit = None
            tasks = [Task(str(first + i), {}) for i in range(count)]
            self.say("driver.1", Tasks(tasks, first + count))

    def plays(self) -> None:
        name = self.rng.choice(WORKERS)
        worker, peer = self.workers[name], self.peer(name)
        if not worker.playing:
            return
        id = self.rng.choice(sorted(worker.playing))
        del worker.playing[id]
        outcome, metas = self.rng.choice(OUTCOMES), []
        if outcome is Outcome.DONE:
            version = self.version + (self.rng.random() < 0.1)
            metas = [TrajectoryMeta(2, 2, 1, 0.0, [(max(1, version), 2)])]
        report = EpisodeReport(id, outcome, StopReason.TERMINATED, metas, error="why")
        event = FromPeer(peer, self.epochs[peer], 1, Finished(report))
        if self.cores.wants(event):
            ref = PayloadRef("buffer", 1, self.offset, 30, 7)
            self.offset += 30
            self.do(Stored(peer, event.epoch, 1, Finished(report), (ref,)))
        else:
            self.do(event)

    def scores_groups(self) -> None:
        name = self.rng.choice(WORKERS)
        while self.workers[name].orders:
            order = self.workers[name].orders.pop()
            rewards = [float(each.index) for each in order.episodes]
            self.say(self.peer(name), GroupScore(order.group, rewards, self.rng.random() < 0.8))

    def trains(self) -> None:
        peer = f"learner.{self.learner}"
        self.say(peer, LeaseRequest(self.stepped + 1))
        if self.lease != self.stepped + 1:
            return
        self.stepped = self.lease
        self.say(peer, Stepped(self.stepped, False, 0.0, 0.0, 1.0))
        if self.rng.random() < 0.7:
            self.publishes(peer)
        if self.rng.random() < 0.5:
            self.retired = self.stepped
            self.say(peer, Retire(self.retired))

    def publishes(self, peer: str) -> None:
        row = VersionRow(self.version + 1, self.version if self.version > 0 else None, self.stepped)
        self.version += 1
        if self.rng.random() < 0.5:
            self.say(peer, AnnounceVersion(row))
        self.say(peer, PushDone(row, self.stepped))

    def evaluates(self) -> None:
        number = self.rng.randint(max(1, self.orders - 1), self.orders + 1)
        self.orders = max(number, self.orders)
        sort = random.Random(number)
        tasks = [Task(str(i), {}) for i in range(sort.randint(0, 3))]
        order = Evaluate(
            "heldout", f"e{number}", tasks, sort.randint(1, 2), SamplingParams(), number,
            beside=sort.random() < 0.5, pinned=sort.random() < 0.5,
        )  # fmt: skip
        self.say("driver.1", order)

    def asks_to_push(self) -> None:
        self.say(f"learner.{self.learner}", MayPush(self.version + 1))

    def waits(self) -> None:
        self.now += self.rng.choice([0.5, 2.0, 5.0])
        self.do(Tick())

    def reconnects(self) -> None:
        name = self.rng.choice([*WORKERS, "driver"])
        if name == "driver":
            self.join("driver", "driver")
        else:
            worker = self.workers[name]
            kept = [id for id in sorted(worker.playing) if self.rng.random() < 0.7]
            worker.playing = {id: worker.playing[id] for id in kept}
            self.join(name, "worker", worker.incarnation, kept)

    def worker_starts_again(self) -> None:
        name = self.rng.choice(WORKERS)
        worker = self.workers[name]
        if any(each.evaluation is not None for each in worker.playing.values()):
            return
        if self.rng.random() < 0.5:
            self.say("driver.1", PeerLost(name, str(worker.incarnation)))
        worker.playing, worker.orders = {}, []
        worker.incarnation += 1
        self.worker_starts(name)

    def worker_starts(self, name: str) -> None:
        self.join(name, "worker", self.workers[name].incarnation)
        self.say(self.peer(name), Capacity(10_000))

    def learner_starts(self) -> None:
        self.learner += 1
        self.join("learner", "learner", self.learner)
        self.stepped = self.lease = self.retired
        self.version = max(self.version, 0)
        self.publishes(f"learner.{self.learner}")

    def restarts(self) -> None:
        self.do(Restart())
        for worker in self.workers.values():
            worker.orders = []
        self.join("driver", "driver")
        self.join("learner", "learner", self.learner)
        for name, worker in self.workers.items():
            self.join(name, "worker", worker.incarnation, sorted(worker.playing))
            self.say(self.peer(name), Capacity(10_000))

    def peer(self, name: str) -> str:
        return f"{name}.{self.workers[name].incarnation}"


def is_of_evaluation(id: EpisodeId) -> bool:
    return not id.group.isdigit()


def erased(event: Happening) -> Happening:
    """The event, had there been no evaluation."""
    if not isinstance(event, FromPeer):
        return event
    match event.message:
        case Evaluate():
            return msgspec.structs.replace(event, seq=0, message=Heartbeat())
        case Finished(report) if is_of_evaluation(report.id):
            return msgspec.structs.replace(event, seq=0, message=Heartbeat())
        case Hello() as hello:
            running = [id for id in hello.running if not is_of_evaluation(id)]
            message = msgspec.structs.replace(hello, running=running)
            return msgspec.structs.replace(event, message=message)
    return event


def of_training(effects: list[Effect]) -> Iterator[Effect]:
    """What an event does to training, without the figures of the buffer."""
    for effect in effects:
        match effect:
            case Persist(LeaseRow() as row):
                yield Persist(msgspec.structs.replace(row, stats={}))
            case Send(peer, Lease(header)):
                yield Send(peer, Lease(msgspec.structs.replace(header, stats={})))
            case Send(peer, Assign(episodes)):
                if kept := [each for each in episodes if each.evaluation is None]:
                    yield Send(peer, Assign(kept))
            case Send(peer, Cancel(ids)):
                if left := [id for id in ids if not is_of_evaluation(id)]:
                    yield Send(peer, Cancel(left))
            case Send(_, PushGranted()):
                pass
            case Notify(event) if event.kind in OF_EVALUATIONS:
                pass
            case Notify(event):
                data = {k: v for k, v in event.data.items() if k not in ("buffer", "stats")}
                yield Notify(msgspec.structs.replace(event, data=data))
            case _:
                yield effect


@st.composite
def configs(draw: st.DrawFn) -> BufferSettings:
    interval = draw(st.integers(1, 2))
    return BufferSettings(
        address="ipc:///tmp/none",
        rollout_batch_size=draw(st.integers(1, 3)),
        n_samples_per_prompt=draw(st.integers(1, 3)),
        min_group_size=1,
        async_buffer_size=draw(st.integers(0, 3)),
        max_staleness=draw(st.integers(interval - 1, 3)),
        update_weights_interval=interval,
        staleness_policy=draw(st.sampled_from(["mask", "drop"])),
        partial_rollout=draw(st.booleans()),
        retry_pause_s=draw(st.sampled_from([0.0, 2.0])),
        num_permits=draw(st.sampled_from([None, 4, 16])),
        liveness_s=1e9,
        publish_grace_s=draw(st.sampled_from([1.0, 100.0])),
    )


@settings(max_examples=100, deadline=None)
@given(configs(), st.integers(0, 2**32), st.integers(20, 160))
def test_training_is_the_same_with_and_without_evaluations(
    config: BufferSettings, seed: int, steps: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="agentrl-life-") as folder:
        cores, other = Cores(config, Path(folder) / "with"), Cores(config, Path(folder) / "without")
        life = Life(random.Random(seed), cores)
        life.live(steps)
        for (event, now), effects in zip(life.trace, cores.effects, strict=True):
            without = erased(event)
            found, expected = of_training(other.take(without, now)), of_training(effects)
            if isinstance(without, FromPeer) and without.seq == 0:
                found, expected = unanswered(found), unanswered(expected)
            assert list(expected) == list(found), f"of {event}"


def unanswered(effects: Iterator[Effect]) -> Iterator[Effect]:
    """Without the answer to a message that the other core was not told."""
    answers = (Ack, Refused, Heartbeat)
    return (e for e in effects if not (isinstance(e, Send) and isinstance(e.message, answers)))
