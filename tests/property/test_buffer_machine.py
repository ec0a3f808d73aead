"""Random lives of the buffer's core against a small independent model and a real ledger file.

The model sees only what peers see (messages) and what the ledger's tables say, never the core's own
counts. After every event: conservation, the bound on charged groups, leases without overlap, one
holder per episode, and a restart from the file that equals the core in memory.
"""

import math
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentrl.buffer import BufferCore, BufferSettings, audit
from agentrl.buffer.events import FromPeer, Notify, Persist, Send, Stored, Tick
from agentrl.buffer.leases import LEASE_DEATHS
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import GroupRow
from agentrl.buffer.store import PayloadStore
from agentrl.config.run import StalenessPolicy
from agentrl.types import (
    EpisodeId,
    EpisodeReport,
    Fate,
    GroupState,
    Outcome,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.wire.messages import (
    Capacity,
    Finished,
    Heartbeat,
    Hello,
    LeaseRequest,
    Message,
    PeerLost,
    Published,
    Refused,
    Retire,
    Stepped,
    Tasks,
    Verdict,
)
from tests.property.buffer_model import WORKERS, Model, Worker
from tests.slices import IS_FULL

OUTCOMES = [Outcome.DONE] * 6 + [Outcome.ENGINE_ERROR, Outcome.ENV_ERROR, Outcome.POISON]


def two_tokens(version: int) -> TrajectoryMeta:
    return TrajectoryMeta(2, 2, 1, 0.0, [(version, 2)])


def facts(core: BufferCore) -> dict[str, Any]:
    """All that a restart must find again."""
    state = core.state
    return {
        "groups": state.groups,
        "episodes": state.episodes,
        "leases": (state.leases, state.unmade),
        "versions": state.lineage.rows,
        "pacing": state.pacer.row,
        "marks": state.marks,
        "fates": dict(state.fates),
        "segments": {number: use.live for number, use in state.segments.items()},
        "counts": (state.minted, state.cursor, state.last_lease, state.charged),
        "ready": (state.ready, state.unleased),
        "again": core.minter.waiting_again,
        "peers": {peer.name: peer.row for peer in core.peers},
    }


class BufferMachine(RuleBasedStateMachine):
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

    # ---- the wire ----

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

    # ---- the driver ----

    @precondition(lambda self: self.model.credit is not None)
    @rule(data=st.data())
    def offer(self, data: st.DataObject) -> None:
        credit = self.model.credit
        assert credit is not None
        count = data.draw(st.integers(1, credit.num_tasks))
        tasks = [Task(str(credit.cursor + i), {}) for i in range(count)]
        self.model.credit = None
        message = Tasks(tasks, credit.cursor + count)
        self.say("driver", message)
        if data.draw(st.booleans()):
            self.say("driver", message)

    @rule()
    def driver_reconnects(self) -> None:
        self.join("driver", "driver")

    # ---- workers ----

    def report(self, name: str, report: EpisodeReport) -> None:
        peer = self.peer(name)
        event = FromPeer(peer, self.model.epoch[peer], 1, Finished(report))
        if not self.core.wants(event):
            self.do(event)
            return
        refs = tuple(self.store.append([b"p" * 30]) for _ in report.trajectories)
        self.store.sync()
        self.do(Stored(peer, self.model.epoch[peer], 1, Finished(report), refs))

    @rule(name=st.sampled_from(WORKERS), data=st.data())
    def finish(self, name: str, data: st.DataObject) -> None:
        worker = self.model.workers[name]
        if not worker.playing:
            return
        id = data.draw(st.sampled_from(sorted(worker.playing)))
        outcome = data.draw(st.sampled_from(OUTCOMES))
        worker.playing.discard(id)
        trajectories = []
        if outcome is Outcome.DONE:
            trajectories = [two_tokens(data.draw(st.sampled_from(self.model.versions)).version)]
        report = EpisodeReport(id, outcome, StopReason.TERMINATED, trajectories)
        worker.reported.append(report)
        self.report(name, report)

    @rule(name=st.sampled_from(WORKERS), data=st.data())
    def repeat_a_report(self, name: str, data: st.DataObject) -> None:
        if self.model.workers[name].reported:
            self.report(name, data.draw(st.sampled_from(self.model.workers[name].reported)))

    @rule(name=st.sampled_from(WORKERS), keep=st.sampled_from([True, True, True, False]))
    def judge(self, name: str, keep: bool) -> None:
        self.say_verdicts(name, keep=keep)

    def say_verdicts(self, name: str, *, keep: bool) -> None:
        for group, size in list(self.model.workers[name].orders.items()):
            self.say(name, Verdict(group, [0.5] * size, keep))
        self.model.workers[name].orders.clear()

    @rule(name=st.sampled_from(WORKERS), told=st.sampled_from(["never", "before", "after"]))
    def worker_dies(self, name: str, told: str) -> None:
        if told == "before":
            self.say("driver", PeerLost(name))
        self.model.workers[name] = Worker()
        self.incarnation[name] += 1
        self.join(name, "worker")
        self.say(name, Capacity(4))
        if told == "after":
            self.say("driver", PeerLost(name))
            self.say(name, Heartbeat())

    @rule(name=st.sampled_from(WORKERS), data=st.data())
    def worker_reconnects(self, name: str, data: st.DataObject) -> None:
        playing = sorted(self.model.workers[name].playing)
        kept = [id for id in playing if data.draw(st.booleans())]
        self.model.workers[name].playing = set(kept)
        self.join(name, "worker", kept)

    @rule(seconds=st.floats(0.5, 8.0), silent=st.sampled_from([None, *WORKERS]))
    def time_passes(self, seconds: float, silent: str | None) -> None:
        for name in ("driver", "learner", *WORKERS):
            if name != silent:
                self.say(name, Heartbeat())
        self.now += seconds
        self.do(Tick())

    # ---- the learner ----

    @rule()
    def learner_works(self) -> None:
        self.work()

    def work(self) -> None:
        if self.model.received == self.stepped + 1:
            self.stepped += 1
            self.model.deaths[self.stepped] = 0
            self.say("learner", Stepped(self.stepped, self.stepped % 5 == 0, 0.0, 0.0, 1.0))
            if self.stepped % self.settings.update_weights_interval == 0:
                self.publish(self.model.versions[-1].version, self.stepped, self.stepped)
        self.say("learner", LeaseRequest(self.stepped + 1))

    @rule()
    def learner_saves(self) -> None:
        self.checkpoint = self.stepped
        self.say("learner", Retire(self.checkpoint))

    @rule()
    def learner_dies(self) -> None:
        self.incarnation["learner"] += 1
        self.join("learner", "learner")
        if self.stepped > self.checkpoint:
            self.recoveries += 1
        held = [row for row in self.model.versions if row.iteration <= self.checkpoint]
        self.stepped = self.model.received = self.checkpoint
        self.publish(max(row.version for row in held), self.checkpoint, self.checkpoint)
        self.say("learner", LeaseRequest(self.stepped + 1))

    @rule()
    def learner_fails(self) -> None:
        """It ends by itself; its lease may be why."""
        number = self.stepped + 1
        if self.model.received == number:
            self.model.deaths[number] += 1
        deaths = self.model.deaths[number]
        gone = PeerLost("learner", str(self.incarnation["learner"]), failed=True)
        told = [] if self.model.received != number else [deaths]
        assert [data["deaths"] for data in self.say_and_hear("driver", gone)] == told
        assert self.say_and_hear("driver", gone) == [], "an end was counted twice"
        if told == [LEASE_DEATHS]:
            self.model.gave_up(number)
            self.recoveries += 1
        self.learner_dies()

    def say_and_hear(self, name: str, message: Message) -> list[dict[str, Any]]:
        """What the driver is told of leases that fail."""
        self.failed.clear()
        self.say(name, message)
        return list(self.failed)

    def publish(self, parent: int | None, iteration: int, through: int) -> None:
        version = len(self.model.versions) + 1
        row = VersionRow(version, parent, iteration)
        self.model.published(row, through)
        sent = self.say("learner", Published(row, through))
        assert not any(isinstance(message, Refused) for message in sent)

    # ---- the buffer ----

    @rule()
    def buffer_dies(self) -> None:
        self.core = BufferCore(self.settings, self.ledger.load(), self.now)
        self.model.credit = None
        for name, worker in self.model.workers.items():
            worker.orders.clear()
            self.join(name, "worker", sorted(worker.playing))
            self.say(name, Capacity(4))
        self.join("driver", "driver")
        self.join("learner", "learner")

    @invariant()
    def a_restart_would_find_what_is_here(self) -> None:
        restored = BufferCore(self.settings, self.ledger.load(), self.now)
        assert facts(restored) == facts(self.core)

    @invariant()
    def the_average_of_old_tokens_is_that_of_the_leases(self) -> None:
        if self.recoveries == 0:
            share = self.core.state.pacer.row.old_share
            assert math.isclose(share, self.model.old_share, abs_tol=1e-9)

    @invariant()
    def every_group_has_one_fate_or_is_open(self) -> None:
        groups = self.ledger.load_all().groups
        assert [group.mint for group in groups] == list(range(1, len(groups) + 1))
        for group in groups:
            assert (group.fate is not None) == (group.state is GroupState.RETIRED)
            assert group.mint not in self.model.given_up or group.fate is Fate.POISON
            assert group.fate is not Fate.STALE or self.settings.staleness_policy == "drop"
            assert group.fate is not Fate.SURPLUS or self.settings.max_staleness == 0
        tasks = [group.task.id for group in groups if group.repeat == 0]
        assert tasks == [str(position) for position in range(len(tasks))]

    @invariant()
    def a_task_is_minted_again_after_a_group_came_to_nothing_and_twice_at_the_most(self) -> None:
        before: dict[str, GroupRow] = {}
        for group in self.ledger.load_all().groups:
            if group.repeat:
                assert group.repeat == before[group.task.id].repeat + 1 <= 2
                assert self.comes_again(before[group.task.id])
            before[group.task.id] = group
        lost = filter(self.comes_again, before.values())
        waiting = [group.mint for group in lost if group.repeat < 2]
        assert sorted(self.core.minter.waiting_again) == sorted(waiting)

    def comes_again(self, group: GroupRow) -> bool:
        """Whether nobody could be trained on its task, and it is not to be left at that."""
        is_cut = group.fate is Fate.SURPLUS and group.rewards is None
        return group.fate is Fate.STALE or (is_cut and self.settings.partial_rollout)

    @invariant()
    def while_a_lease_is_not_published_nothing_else_is_in_the_making_on_policy(self) -> None:
        groups = self.ledger.load_all().groups
        leased = any((group.lease or 0) > self.model.through for group in groups)
        if self.settings.max_staleness == 0 and leased and not self.recoveries:
            assert all(group.fate or group.lease for group in groups)

    @invariant()
    def no_group_is_in_two_leases(self) -> None:
        leased = [mint for mints in self.model.leases.values() for mint in mints]
        assert len(leased) == len(set(leased))
        assert sorted(self.model.leases) == list(range(1, len(self.model.leases) + 1))
        sizes = {len(mints) for mints in self.model.leases.values()}
        assert sizes <= {self.settings.rollout_batch_size}

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

    @rule(rounds=st.integers(1, 4))
    def all_is_well_for_a_while(self, rounds: int) -> None:
        for _ in range(rounds):
            self.all_work()

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


BufferMachine.TestCase.settings = settings(
    max_examples=60 if IS_FULL else 25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestBufferMachine = BufferMachine.TestCase
