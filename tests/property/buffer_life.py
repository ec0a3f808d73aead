"""The buffer's core between its peers: a real ledger file and store below it, and a small
independent model that hears what it says."""

import math
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from agentrl.buffer import BufferCore, BufferSettings, audit
from agentrl.buffer.events import FromPeer, Notify, Persist, Send, Stored, Tick
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.store import PayloadStore
from agentrl.config.run import StalenessPolicy
from agentrl.types import (
    EpisodeId,
    EpisodeReport,
    Outcome,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.wire.messages import (
    Capacity,
    Finished,
    GroupScore,
    Hello,
    LeaseRequest,
    Message,
    PushDone,
    Refused,
    Stepped,
    Tasks,
)
from tests.property.buffer_model import WORKERS, Model


def two_tokens(version: int) -> TrajectoryMeta:
    return TrajectoryMeta(2, 2, 1, 0.0, [(version, 2)])


class BufferLife(RuleBasedStateMachine):
    """What the peers of a buffer do; which of it happens next, a machine says."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="agentrl-buffer-"))
        self.ledger = Ledger(self.folder / "ledger.db")
        self.store = PayloadStore(self.folder / "payload", segment_bytes=64, first=1)
        self.now = 0.0
        self.incarnation: Counter[str] = Counter()
        self.stepped = 0
        self.checkpoint = 0
        self.recoveries = 0
        self.failed: list[dict[str, Any]] = []

    @initialize(
        batch=st.integers(1, 3),
        group=st.integers(1, 3),
        ahead=st.integers(0, 3),
        staleness=st.integers(0, 3),
        interval=st.integers(1, 3),
        spare=st.integers(0, 1),
        policy=st.sampled_from(["mask", "drop"]),
        over=st.integers(0, 2),
        partial=st.booleans(),
    )
    def begin(
        self,
        batch: int,
        group: int,
        ahead: int,
        staleness: int,
        interval: int,
        spare: int,
        policy: StalenessPolicy,
        over: int,
        partial: bool,
    ) -> None:
        staleness = max(staleness, interval - 1)
        most = (min(ahead, staleness) + 1) * batch if staleness else 3 * batch
        self.settings = BufferSettings(
            address="ipc:///tmp/none",
            rollout_batch_size=batch,
            n_samples_per_prompt=group,
            min_group_size=max(1, group - spare),
            async_buffer_size=ahead,
            max_staleness=staleness,
            staleness_policy=policy,
            update_weights_interval=interval,
            partial_rollout=partial,
            over_sampling_batch_size=min(batch + over, most),
            keep_trajectories=0,
        )
        self.core = BufferCore(self.settings)
        self.model = Model(self.settings)
        self.join("driver", "driver")
        self.join("learner", "learner")
        self.publish(None, 0, 0)
        for name in WORKERS:
            self.join(name, "worker")
            self.say(name, Capacity(4))

    def peer(self, name: str) -> str:
        return f"{name}.{self.incarnation[name]}"

    def say(self, name: str, message: Message) -> list[Message]:
        event = FromPeer(self.peer(name), self.model.epoch[self.peer(name)], 1, message)
        return self.do(event)

    def join(self, name: str, role: Any, running: list[EpisodeId] | None = None) -> None:
        hello = Hello(role, name, str(self.incarnation[name]), running or [])
        self.do(FromPeer(self.peer(name), 0, 0, hello))

    def do(self, event: FromPeer | Stored | Tick) -> list[Message]:
        minted = self.core.state.minted
        effects = self.core.handle(event, self.now)
        self.ledger.commit([effect.row for effect in effects if isinstance(effect, Persist)])
        if self.settings.staleness_policy == "drop":
            next_lease = self.core.state.last_lease + 1
            self.model.read(self.ledger.load_all(), next_lease, recovered=self.recoveries > 0)
        for effect in effects:
            if isinstance(effect, Send):
                self.model.hear(effect.peer, effect.message)
            elif isinstance(effect, Notify) and effect.event.kind == "lease_failed":
                self.failed.append(effect.event.data)
        if self.core.state.minted > minted:
            room = min(self.model.limit(), math.ceil(self.core.state.pacer.row.cap))
            charged = self.model.charged(self.ledger.load_all().groups)
            assert charged <= room, "minted beyond the bound"
        return [effect.message for effect in effects if isinstance(effect, Send)]

    def report(self, name: str, report: EpisodeReport) -> None:
        peer = self.peer(name)
        event = FromPeer(peer, self.model.epoch[peer], 1, Finished(report))
        if not self.core.wants(event):
            self.do(event)
            return
        refs = tuple(self.store.append([b"p" * 30]) for _ in report.trajectories)
        self.store.sync()
        self.do(Stored(peer, self.model.epoch[peer], 1, Finished(report), refs))

    def say_verdicts(self, name: str, *, keep: bool) -> None:
        for group, size in list(self.model.workers[name].orders.items()):
            self.say(name, GroupScore(group, [0.5] * size, keep))
        self.model.workers[name].orders.clear()

    def work(self) -> None:
        if self.model.received == self.stepped + 1:
            self.stepped += 1
            self.model.deaths[self.stepped] = 0
            self.say("learner", Stepped(self.stepped, self.stepped % 5 == 0, 0.0, 0.0, 1.0))
            if self.stepped % self.settings.update_weights_interval == 0:
                self.publish(self.model.versions[-1].version, self.stepped, self.stepped)
        self.say("learner", LeaseRequest(self.stepped + 1))

    def say_and_hear(self, name: str, message: Message) -> list[dict[str, Any]]:
        """What the driver is told of leases that fail."""
        self.failed.clear()
        self.say(name, message)
        return list(self.failed)

    def publish(self, parent: int | None, iteration: int, through: int) -> None:
        version = len(self.model.versions) + 1
        row = VersionRow(version, parent, iteration)
        self.model.published(row, through)
        sent = self.say("learner", PushDone(row, through))
        assert not any(isinstance(message, Refused) for message in sent)

    def teardown(self) -> None:
        try:
            if hasattr(self, "core"):
                self.nothing_is_stuck()
                self.ledger.__exit__(None, None, None)
                self.store.sync()
                assert audit(self.folder).problems == ()
        finally:
            self.ledger.__exit__(None, None, None)
            self.store.__exit__(None, None, None)
            shutil.rmtree(self.folder)

    def nothing_is_stuck(self) -> None:
        """With every peer well, two more leases are stepped."""
        goal = self.stepped + 2
        for _ in range(200):
            if self.stepped >= goal:
                return
            self.all_work()
        raise AssertionError(f"stuck before lease {goal}: {self.core.stats()}")

    def all_work(self) -> None:
        if self.model.credit is not None:
            credit, self.model.credit = self.model.credit, None
            tasks = [Task(str(credit.cursor + i), {}) for i in range(credit.num_tasks)]
            self.say("driver", Tasks(tasks, credit.cursor + credit.num_tasks))
        for name, worker in self.model.workers.items():
            for id in sorted(worker.playing):
                worker.playing.discard(id)
                meta = two_tokens(self.model.versions[-1].version)
                done = EpisodeReport(id, Outcome.DONE, StopReason.TERMINATED, [meta])
                self.report(name, done)
            self.say_verdicts(name, keep=True)
        self.work()
