"""Random lives of the buffer's core against a small independent model and a real ledger file.

The model sees only what peers see (messages) and what the ledger's tables say, never the core's own
counts. After every event: conservation, the bound on charged groups, leases without overlap, one
holder per episode, and a restart from the file that equals the core in memory.
"""

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from agentrl.buffer import BufferCore
from agentrl.buffer.events import Tick
from agentrl.buffer.leases import LEASE_DEATHS
from agentrl.buffer.rows import GroupRow
from agentrl.types import EpisodeReport, Fate, GroupState, Outcome, StopReason, Task
from agentrl.wire.messages import Capacity, Heartbeat, LeaseRequest, PeerLost, Retire, Tasks
from tests.property.buffer_life import BufferLife, two_tokens
from tests.property.buffer_model import WORKERS, Worker
from tests.slices import IS_FULL

pytestmark = pytest.mark.slow

OUTCOMES = [Outcome.DONE] * 6 + [Outcome.ENGINE_ERROR, Outcome.ENV_ERROR, Outcome.POISON]


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


class BufferMachine(BufferLife):
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

    @rule(rounds=st.integers(1, 4))
    def all_is_well_for_a_while(self, rounds: int) -> None:
        for _ in range(rounds):
            self.all_work()


BufferMachine.TestCase.settings = settings(
    max_examples=60 if IS_FULL else 25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestBufferMachine = BufferMachine.TestCase
