"""The buffer's core on a bench: its rules are tested by speaking to it as peers would."""

from collections import defaultdict
from typing import Any, TypeVar

from agentrl.buffer import BufferCore, BufferSettings
from agentrl.buffer.events import (
    DropSegments,
    Effect,
    FromPeer,
    Notify,
    Persist,
    Send,
    Stored,
    Tick,
    Unreadable,
)
from agentrl.buffer.rows import Row
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    LeaseHeader,
    Outcome,
    PayloadRef,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.wire.messages import (
    Assign,
    Capacity,
    Finished,
    GroupScore,
    Hello,
    Lease,
    LeaseRequest,
    Message,
    PushDone,
    Role,
    ScoreGroup,
    Stepped,
    TaskCredit,
    Tasks,
    Welcome,
)

M = TypeVar("M")


class Bench:
    """A core with peers by name; a peer's connection is its name and incarnation."""

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {
            "address": "ipc:///tmp/none",
            "rollout_batch_size": 2,
            "n_samples_per_prompt": 2,
            "async_buffer_size": 1,
            "max_staleness": 1,
        }
        self.core = BufferCore(BufferSettings(**(defaults | settings)))
        self.now = 0.0
        self.epochs: dict[str, int] = {}
        self.inbox: defaultdict[str, list[Message]] = defaultdict(list)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.dropped: list[int] = []
        self.rows: list[Row] = []
        self.offset = 0
        self.segment = 1
        self.seq = 0

    def do(self, event: FromPeer | Stored | Unreadable | Tick) -> list[Effect]:
        effects = self.core.handle(event, self.now)
        for effect in effects:
            match effect:
                case Send(peer, message):
                    self.inbox[peer].append(message)
                    if isinstance(message, Welcome):
                        self.epochs[peer] = message.epoch
                case Notify(told):
                    self.events.append((told.kind, told.data))
                case DropSegments(segments):
                    self.dropped += segments
                case Persist(row):
                    self.rows.append(row)
        return effects

    def join(
        self, name: str, role: Role, incarnation: str = "1", running: list[EpisodeId] | None = None
    ) -> str:
        peer = f"{name}.{incarnation}"
        self.do(FromPeer(peer, 0, 0, Hello(role, name, incarnation, running or [])))
        return peer

    def say(self, peer: str, message: Message) -> int:
        self.seq += 1
        self.do(FromPeer(peer, self.epochs[peer], self.seq, message))
        return self.seq

    def garble(self, peer: str, **about: Any) -> int:
        """Say something of which only `about` can be read."""
        self.seq += 1
        self.do(Unreadable(peer, self.epochs[peer], self.seq, "cannot be read", **about))
        return self.seq

    def take(self, peer: str, kind: type[M]) -> list[M]:
        """Messages of this kind that have come since the last take."""
        mine: list[M] = [message for message in self.inbox[peer] if isinstance(message, kind)]
        self.inbox[peer] = [m for m in self.inbox[peer] if not isinstance(m, kind)]
        return mine

    def assigned(self, peer: str) -> list[EpisodeAssignment]:
        return [episode for message in self.take(peer, Assign) for episode in message.episodes]

    def offer(
        self,
        count: int,
        *,
        exhausted: bool = False,
        row: dict[str, Any] | None = None,
        part: str = "",
    ) -> None:
        """Answer the driver's last credit with at most `count` tasks."""
        credit = self.take("driver.1", TaskCredit)[-1]
        count = min(count, credit.num_tasks)
        tasks = [Task(str(credit.cursor + i), row or {}, part=part) for i in range(count)]
        self.say("driver.1", Tasks(tasks, credit.cursor + count, exhausted))

    def supply(self) -> None:
        """Offer tasks for as long as the driver is given credit."""
        while any(isinstance(message, TaskCredit) for message in self.inbox["driver.1"]):
            self.offer(4096)

    def finish(
        self,
        worker: str,
        id: EpisodeId,
        *,
        outcome: Outcome = Outcome.DONE,
        versions: tuple[tuple[int, int], ...] = ((1, 4),),
        defect: str | None = None,
        reward: float = 1.0,
        wall_s: float = 1.0,
        vote: str = "",
        **facts: Any,
    ) -> int:
        """`facts`: of the report of a `done` one."""
        if outcome is not Outcome.DONE:
            report = EpisodeReport(id, outcome, StopReason.ERROR, [], error="why")
            return self.do_finish(worker, report)
        sampled = sum(count for _, count in versions)
        meta = TrajectoryMeta(6, sampled, 1, reward, list(versions))
        ended = StopReason.TERMINATED
        facts |= {"wall_s": wall_s, "vote": vote}
        report = EpisodeReport(id, outcome, ended, [meta], reward, **facts)
        return self.do_finish(worker, report, defect=defect)

    def do_finish(self, worker: str, report: EpisodeReport, defect: str | None = None) -> int:
        """Hand in a report as it is; a `done` one has columns."""
        self.seq += 1
        if report.outcome is not Outcome.DONE:
            self.do(FromPeer(worker, self.epochs[worker], self.seq, Finished(report)))
            return self.seq
        payload = PayloadRef("buffer", self.segment, self.offset, 90, 7)
        self.offset += 90
        event = (worker, self.epochs[worker], self.seq, Finished(report))
        payloads = () if defect is not None else (payload,)
        self.do(Stored(*event, payloads=payloads, defect=defect))
        return self.seq

    def judge_all(self, worker: str, *, keep: bool = True) -> None:
        for order in self.take(worker, ScoreGroup):
            rewards = [float(summary.index) for summary in order.episodes]
            self.say(worker, GroupScore(order.group, rewards, keep))

    def play_all(self, worker: str, **how: Any) -> None:
        """Finish and judge until nothing is left to do."""
        while episodes := self.assigned(worker):
            for episode in episodes:
                self.finish(worker, episode.id, **how)
            self.judge_all(worker)

    def lease(self, number: int) -> LeaseHeader:
        self.say("learner.1", LeaseRequest(number))
        return self.take("learner.1", Lease)[-1].header

    def step(self, number: int, *, skipped: bool = False) -> None:
        self.say("learner.1", Stepped(number, skipped, 0.0, 0.0, 1.0))

    def publish(self, version: int, parent: int | None, through: int) -> None:
        row = VersionRow(version, parent, through)
        self.say("learner.1", PushDone(row, through))

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [data for name, data in self.events if name == kind]


def bench(workers: tuple[str, ...] = ("w0",), capacity: int = 100, **settings: Any) -> Bench:
    """A core with a driver, a learner, these workers and version 1 published."""
    made = Bench(**settings)
    made.join("driver", "driver")
    made.join("learner", "learner")
    made.publish(1, None, 0)
    for name in workers:
        made.join(name, "worker")
        made.say(f"{name}.1", Capacity(capacity))
    return made
