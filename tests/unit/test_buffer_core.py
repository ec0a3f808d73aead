"""The rules of the buffer's core, one test each, spoken to as peers would."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

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
from agentrl.telemetry.metrics import REGISTRY
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    Fate,
    LeaseHeader,
    Outcome,
    PayloadRef,
    PermitStats,
    SamplingParams,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.wire.messages import (
    Ack,
    Assign,
    Cancel,
    Capacity,
    Drain,
    Echo,
    Evaluate,
    Fetch,
    Finished,
    Heartbeat,
    Hello,
    Judge,
    Lease,
    LeaseRequest,
    Message,
    NoMoreLeases,
    PeerLost,
    Published,
    Refused,
    Retire,
    Stepped,
    TaskCredit,
    Tasks,
    Verdict,
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
        self.settings = BufferSettings(**(defaults | settings))
        self.core = BufferCore(self.settings)
        self.now = 0.0
        self.epochs: dict[str, int] = {}
        self.inbox: defaultdict[str, list[Message]] = defaultdict(list)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.dropped: list[int] = []
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
        return effects

    def join(
        self, name: str, role: Any, incarnation: str = "1", running: list[EpisodeId] | None = None
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

    def offer(self, count: int, *, exhausted: bool = False) -> None:
        """Answer the driver's last credit with at most `count` tasks."""
        credit = self.take("driver.1", TaskCredit)[-1]
        count = min(count, credit.num_tasks)
        tasks = [Task(str(credit.cursor + i), {}) for i in range(count)]
        self.say("driver.1", Tasks(tasks, credit.cursor + count, exhausted))

    def finish(
        self,
        worker: str,
        id: EpisodeId,
        *,
        outcome: Outcome = Outcome.DONE,
        versions: tuple[tuple[int, int], ...] = ((1, 4),),
        defect: str | None = None,
        reward: float = 1.0,
    ) -> int:
        self.seq += 1
        if outcome is not Outcome.DONE:
            report = EpisodeReport(id, outcome, StopReason.ERROR, [], error="why")
            self.do(FromPeer(worker, self.epochs[worker], self.seq, Finished(report)))
            return self.seq
        sampled = sum(count for _, count in versions)
        meta = TrajectoryMeta(6, sampled, 1, reward, list(versions))
        report = EpisodeReport(id, outcome, StopReason.TERMINATED, [meta], reward)
        payload = PayloadRef("buffer", self.segment, self.offset, 90, 7)
        self.offset += 90
        event = (worker, self.epochs[worker], self.seq, Finished(report))
        payloads = () if defect is not None else (payload,)
        self.do(Stored(*event, payloads=payloads, defect=defect))
        return self.seq

    def judge_all(self, worker: str, *, keep: bool = True) -> None:
        for order in self.take(worker, Judge):
            rewards = [float(summary.index) for summary in order.episodes]
            self.say(worker, Verdict(order.group, rewards, keep))

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
        self.say("learner.1", Published(row, through))

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [data for name, data in self.events if name == kind]

    def restart(self, restored: Any) -> None:
        self.core = BufferCore(self.settings, restored, self.now)


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """A core with a driver, a learner, a worker and version 1 published."""

    def make(workers: tuple[str, ...] = ("w0",), capacity: int = 100, **settings: Any) -> Bench:
        made = Bench(**settings)
        made.join("driver", "driver")
        made.join("learner", "learner")
        made.publish(1, None, 0)
        for name in workers:
            made.join(name, "worker")
            made.say(f"{name}.1", Capacity(capacity))
        return made

    return make


# ---- minting -------------------------------------------------------------------------------------


def test_a_driver_gets_credit_for_exactly_what_may_be_minted(bench: Any) -> None:
    b = bench()
    assert b.take("driver.1", TaskCredit) == [TaskCredit(4, 0)]
    b.say("driver.1", Tasks([Task("0", {}), Task("1", {})], 2))
    assert b.core.state.minted == 2
    assert b.take("driver.1", TaskCredit) == [TaskCredit(2, 2)]


def test_an_offer_that_is_known_already_is_minted_once(bench: Any) -> None:
    b = bench()
    tasks = Tasks([Task("0", {}), Task("1", {})], 2)
    b.say("driver.1", tasks)
    b.say("driver.1", tasks)
    assert b.core.state.minted == 2


def test_an_offer_that_overlaps_what_is_known_is_taken_from_where_it_is_new(bench: Any) -> None:
    b = bench()
    b.say("driver.1", Tasks([Task("0", {}), Task("1", {})], 2))
    b.say("driver.1", Tasks([Task("1", {}), Task("2", {})], 3))
    assert [group.task.id for group in b.core.state.groups.values()] == ["0", "1", "2"]


def test_an_offer_behind_a_gap_is_ignored_and_asked_for_again(bench: Any) -> None:
    b = bench()
    b.take("driver.1", TaskCredit)
    b.say("driver.1", Tasks([Task("7", {})], 8))
    assert b.core.state.minted == 0
    assert b.take("driver.1", TaskCredit) == [TaskCredit(4, 0)]


def test_minting_stops_at_the_hard_bound_and_goes_on_when_weights_are_published(
    bench: Any,
) -> None:
    b = bench()
    b.offer(100)
    assert b.core.state.charged == 4
    b.play_all("w0.1")
    b.lease(1)
    b.step(1)
    assert b.take("driver.1", TaskCredit) == []
    b.publish(2, 1, 1)
    assert b.core.state.charged == 2
    assert b.take("driver.1", TaskCredit) == [TaskCredit(2, 4)]


def test_only_what_num_rollout_still_needs_is_minted(bench: Any) -> None:
    b = bench(num_rollout=1)
    assert b.take("driver.1", TaskCredit) == [TaskCredit(2, 0)]


def test_a_full_disk_stops_minting_until_segments_are_dropped(bench: Any) -> None:
    b = bench(buffer_disk_limit=100, keep_trajectories=0, async_buffer_size=0, max_staleness=0)
    b.offer(2)
    b.play_all("w0.1")
    assert b.take("driver.1", TaskCredit) == []
    b.lease(1)
    b.step(1)
    b.publish(2, 1, 1)
    assert b.take("driver.1", TaskCredit) == []
    b.say("learner.1", Retire(1))
    assert b.dropped == [1]
    assert [data["full"] for data in b.told("store")] == [True, False]
    assert len(b.take("driver.1", TaskCredit)) == 1


def test_a_filtered_group_returns_its_charge_at_once(bench: Any) -> None:
    b = bench()
    b.offer(4)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id)
    b.take("driver.1", TaskCredit)
    b.judge_all("w0.1", keep=False)
    assert b.core.state.charged == 0
    assert b.core.state.fates == {Fate.FILTERED: 4}


# ---- episodes ------------------------------------------------------------------------------------


def test_episodes_go_to_the_worker_with_most_room_in_mint_order(bench: Any) -> None:
    b = bench(workers=("w0", "w1"), capacity=2)
    b.offer(4)
    first, second = b.assigned("w0.1"), b.assigned("w1.1")
    assert len(first) == len(second) == 2
    assert sorted(e.mint for e in first + second) == [1, 1, 2, 2]


def test_an_episode_keeps_its_seed_over_attempts_and_siblings_differ(bench: Any) -> None:
    b = bench()
    b.offer(1)
    first, sibling = b.assigned("w0.1")
    b.finish("w0.1", first.id, outcome=Outcome.ENGINE_ERROR)
    (again,) = b.assigned("w0.1")
    assert again.id.attempt == 1
    assert again.seed == first.seed != sibling.seed
    assert 0 <= again.seed < 2**63


def test_an_engine_error_is_tried_three_times_in_all(bench: Any) -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    for _ in range(3):
        (episode,) = b.assigned("w0.1")
        b.finish("w0.1", episode.id, outcome=Outcome.ENGINE_ERROR)
    assert b.core.state.fates == {Fate.ENGINE_ERROR: 1}


def test_an_environment_error_is_tried_once_more(bench: Any) -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    for _ in range(2):
        (episode,) = b.assigned("w0.1")
        b.finish("w0.1", episode.id, outcome=Outcome.ENV_ERROR)
    assert b.core.state.fates == {Fate.ENV_ERROR: 1}


def test_a_group_with_enough_done_episodes_is_judged_on_those_alone(bench: Any) -> None:
    b = bench(n_samples_per_prompt=3, min_group_size=2, rollout_batch_size=1)
    b.offer(1)
    for episode in b.assigned("w0.1"):
        outcome = Outcome.POISON if episode.id.index == 1 else Outcome.DONE
        b.finish("w0.1", episode.id, outcome=outcome)
    (order,) = b.take("w0.1", Judge)
    assert [summary.index for summary in order.episodes] == [0, 2]
    b.say("w0.1", Verdict(order.group, [0.5, 1.5]))
    (group,) = b.lease(1).groups
    assert [id.index for id in group.episodes] == [0, 2]
    assert group.rewards == [0.5, 1.5]


def test_a_group_with_too_few_done_episodes_ends_in_its_commonest_failure(bench: Any) -> None:
    b = bench(n_samples_per_prompt=3)
    b.offer(1)
    for episode in b.assigned("w0.1"):
        outcome = Outcome.DONE if episode.id.index == 1 else Outcome.POISON
        b.finish("w0.1", episode.id, outcome=outcome)
    assert b.core.state.fates == {Fate.POISON: 1}


def test_a_report_of_an_older_attempt_is_acknowledged_and_changes_nothing(bench: Any) -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id, outcome=Outcome.ENGINE_ERROR)
    b.take("w0.1", Ack)
    seq = b.finish("w0.1", episode.id)
    assert b.take("w0.1", Ack) == [Ack([seq])]
    assert b.core.state.episodes[1, 0].outcome is None


def test_a_report_that_contradicts_its_columns_is_refused_by_name_and_poisons(bench: Any) -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    seq = b.finish("w0.1", episode.id, defect="513 logprobs")
    (refused,) = b.take("w0.1", Refused)
    assert (refused.seq, refused.fatal) == (seq, False)
    assert "00000001/0#0 refused: 513 logprobs" in refused.reason
    assert b.core.state.fates == {Fate.POISON: 1}


def test_a_report_of_a_version_that_is_skipped_over_is_poison(bench: Any) -> None:
    b = bench(n_samples_per_prompt=1)
    b.publish(5, 1, 0)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id, versions=((3, 4),))
    assert "unknown weight versions [3]" in b.take("w0.1", Refused)[0].reason


def test_a_report_of_the_next_version_waits_for_its_announcement(bench: Any) -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    b.take("w0.1", Ack)
    seq = b.finish("w0.1", episode.id, versions=((2, 4),))
    assert b.take("w0.1", Ack) == []
    assert b.finish("w0.1", episode.id, versions=((2, 4),)) > seq
    b.publish(2, 1, 0)
    assert b.take("w0.1", Ack) == [Ack([seq])]
    assert b.core.state.episodes[1, 0].outcome is Outcome.DONE


def test_a_report_of_a_version_that_never_comes_is_poison_after_the_grace(bench: Any) -> None:
    b = bench(n_samples_per_prompt=1, publish_grace_s=50.0)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id, versions=((9, 4),))
    for _ in range(12):
        b.now += 5
        b.say("w0.1", Heartbeat())
        b.do(Tick())
    assert b.core.state.fates == {Fate.POISON: 1}


# ---- workers come and go -------------------------------------------------------------------------


def test_a_lost_worker_gives_its_episodes_back_at_once(bench: Any) -> None:
    b = bench(workers=("w0", "w1"), capacity=1)
    b.offer(1)
    (mine,) = b.assigned("w0.1")
    (other,) = b.assigned("w1.1")
    b.finish("w1.1", other.id)
    b.say("driver.1", PeerLost("w0"))
    (again,) = b.assigned("w1.1")
    assert again.id == EpisodeId(mine.id.group, mine.id.index, 1)


def test_a_silent_worker_is_lost_and_one_that_beats_is_not(bench: Any) -> None:
    b = bench(workers=("w0", "w1"))
    b.offer(1)
    b.now = 6.0
    b.say("w1.1", Heartbeat())
    b.now = 12.0
    b.do(Tick())
    lost = [data["name"] for data in b.told("peer") if data["state"] == "lost"]
    assert "w0" in lost
    assert "w1" not in lost


def test_a_new_process_of_a_name_fences_the_old_one(bench: Any) -> None:
    b = bench()
    b.offer(1)
    (episode, _) = b.assigned("w0.1")
    b.join("w0", "worker", "2")
    assert b.take("w0.1", Refused)[0].fatal
    b.finish("w0.1", episode.id)
    assert b.take("w0.1", Refused)[0].fatal
    b.join("w0", "worker", "1")
    assert b.take("w0.1", Refused)[0].fatal
    assert b.core.state.episodes[1, 0].attempt == 1


def test_a_worker_that_reconnects_keeps_what_it_still_plays(bench: Any) -> None:
    b = bench()
    b.offer(1)
    kept, gone = (episode.id for episode in b.assigned("w0.1"))
    stale = EpisodeId("00000009", 0)
    b.join("w0", "worker", "1", [kept, stale])
    assert b.take("w0.1", Cancel) == [Cancel(sorted([gone, stale]))]
    assert b.core.state.episodes[1, kept.index].attempt == 0
    row = b.core.state.episodes[1, gone.index]
    assert (row.attempt, row.engine_failures) == (1, 0)


def test_a_judge_is_asked_elsewhere_when_its_worker_is_lost(bench: Any) -> None:
    b = bench(workers=("w0", "w1"), capacity=2, rollout_batch_size=1)
    b.offer(1)
    for worker in ("w0.1", "w1.1"):
        for episode in b.assigned(worker):
            b.finish(worker, episode.id)
    asked = "w0.1" if b.take("w0.1", Judge) else "w1.1"
    other = "w1.1" if asked == "w0.1" else "w0.1"
    b.say("driver.1", PeerLost(asked.removesuffix(".1")))
    assert len(b.take(other, Judge)) == 1


def test_a_judge_that_takes_three_workers_down_ends_the_group(bench: Any) -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id)
    for incarnation in ("2", "3", "4"):
        b.join("w0", "worker", incarnation)
    assert b.core.state.fates == {Fate.ENGINE_ERROR: 1}


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict("00000001", error="the judge raised"),
        Verdict("00000001", [1.0]),
        Verdict("00000001", [1.0, float("nan")]),
    ],
)
def test_a_verdict_that_cannot_be_used_is_an_environment_error(bench: Any, verdict: Any) -> None:
    b = bench()
    b.offer(1)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id)
    b.say("w0.1", verdict)
    assert b.core.state.fates == {Fate.ENV_ERROR: 1}


def test_a_peer_may_only_say_what_its_role_says(bench: Any) -> None:
    b = bench()
    b.say("w0.1", Drain("mischief"))
    assert "a worker may not send Drain" in b.take("w0.1", Refused)[0].reason
    assert b.core.draining is None


# ---- leases --------------------------------------------------------------------------------------


def test_a_lease_is_pushed_when_the_nth_group_is_ready_lowest_mint_first(bench: Any) -> None:
    b = bench()
    b.say("learner.1", LeaseRequest(1))
    b.offer(3)
    episodes = b.assigned("w0.1")
    for episode in reversed(episodes):
        b.finish("w0.1", episode.id)
    orders = {order.group: order for order in b.take("w0.1", Judge)}
    b.now = 3.0
    for group in ("00000003", "00000001"):
        b.say("w0.1", Verdict(group, [0.0, 1.0]))
    (lease,) = b.take("learner.1", Lease)
    assert [group.mint for group in lease.header.groups] == [1, 3]
    assert lease.header.stats["wait_s"] == 3.0
    assert len(orders) == 3


def test_a_lease_that_exists_is_sent_again_as_it_was(bench: Any) -> None:
    b = bench()
    b.offer(4)
    b.play_all("w0.1")
    first = b.lease(1)
    b.lease(2)
    assert b.lease(1) == first


def test_the_last_short_batch_of_a_finite_source_is_leased_as_last(bench: Any) -> None:
    b = bench()
    b.offer(3, exhausted=True)
    b.play_all("w0.1")
    assert not b.lease(1).last
    last = b.lease(2)
    assert last.last
    assert len(last.groups) == 1
    b.say("learner.1", LeaseRequest(3))
    assert b.take("learner.1", NoMoreLeases) == [NoMoreLeases(2, "no task is left")]


def test_the_lease_that_num_rollout_names_is_the_last(bench: Any) -> None:
    b = bench(num_rollout=1)
    b.offer(100)
    b.play_all("w0.1")
    assert b.lease(1).last
    b.say("learner.1", LeaseRequest(2))
    assert b.take("learner.1", NoMoreLeases)[0].after == 1


def test_a_lease_number_that_skips_is_refused(bench: Any) -> None:
    b = bench()
    b.say("learner.1", LeaseRequest(3))
    assert "ask for lease 1" in b.take("learner.1", Refused)[0].reason


def test_fates_become_final_when_a_checkpoint_covers_their_lease(bench: Any) -> None:
    b = bench()
    b.offer(4)
    b.play_all("w0.1")
    for number in (1, 2):
        b.lease(number)
        b.step(number, skipped=number == 2)
    assert b.core.state.fates == {}
    b.say("learner.1", Retire(2))
    assert b.core.state.fates == {Fate.TRAINED: 2, Fate.SKIPPED: 2}
    assert b.core.state.charged == 4
    b.publish(2, 1, 2)
    assert b.core.state.charged == 0
    b.say("learner.1", LeaseRequest(2))
    assert "ask for lease 3" in b.take("learner.1", Refused)[0].reason


def test_a_step_out_of_order_is_refused(bench: Any) -> None:
    b = bench()
    b.offer(4)
    b.play_all("w0.1")
    b.lease(1)
    b.lease(2)
    b.step(2)
    assert "before lease 1" in b.take("learner.1", Refused)[0].reason


def test_a_step_and_its_metrics_are_told_once(bench: Any) -> None:
    b = bench()
    b.offer(2)
    b.play_all("w0.1")
    b.lease(1)
    for _ in range(2):
        b.say("learner.1", Stepped(1, False, 0.0, 0.0, 1.0, {"loss": 2.0}))
    (told,) = b.told("step")
    assert told["metrics"] == {"loss": 2.0}


def test_a_recovered_learner_gets_the_same_leases_and_their_groups_are_charged_again(
    bench: Any,
) -> None:
    b = bench()
    b.offer(4)
    b.play_all("w0.1")
    headers = {}
    for number in (1, 2):
        headers[number] = b.lease(number)
        b.step(number)
        b.publish(number + 1, number, number)
    b.say("learner.1", Retire(1))
    assert b.core.state.charged == 0
    learner = b.join("learner", "learner", "2")
    b.say(learner, LeaseRequest(2))
    assert b.take(learner, Lease)[0].header == headers[2]
    assert b.core.state.charged == 2
    b.say(learner, Published(VersionRow(4, 2, 1), 1))
    assert b.core.state.lineage.age(3, lease=2) == 1
    b.say(learner, Stepped(2, False, 0.0, 0.0, 1.0))
    b.say(learner, Retire(2))
    assert b.core.state.fates == {Fate.TRAINED: 4}


def test_a_lease_push_that_was_lost_is_made_again_when_the_learner_comes_back(bench: Any) -> None:
    b = bench()
    b.say("learner.1", LeaseRequest(1))
    b.offer(2)
    b.play_all("w0.1")
    (lost,) = b.take("learner.1", Lease)
    b.join("learner", "learner", "1")
    assert b.take("learner.1", Lease) == [lost]


def test_a_version_that_does_not_grow_is_refused_and_a_repeated_one_is_not(bench: Any) -> None:
    b = bench()
    b.publish(1, None, 0)
    assert b.take("learner.1", Refused) == []
    b.say("learner.1", Published(VersionRow(1, None, 3), 0))
    assert "does not grow" in b.take("learner.1", Refused)[0].reason


def test_old_tokens_of_a_lease_move_the_average_that_paces_minting(bench: Any) -> None:
    b = bench(async_buffer_size=2, max_staleness=1)
    b.offer(6)
    b.play_all("w0.1", versions=((1, 4),))
    for number in (1, 2):
        b.lease(number)
        b.step(number)
    assert b.core.state.pacer.row.old_share == 0.0
    b.publish(2, 1, 2)
    b.offer(2)
    b.play_all("w0.1", versions=((1, 3), (2, 1)))
    b.lease(3)
    assert b.core.state.pacer.row.old_share == pytest.approx(0.1 * 0.75)


# ---- drain and evaluation ------------------------------------------------------------------------


def test_an_evaluation_that_a_drain_cuts_off_says_so(bench: Any) -> None:
    b = bench()
    b.say("driver.1", Evaluate("heldout", "e1", [Task("a", {})] * 3, 1, SamplingParams()))
    first, *_ = b.assigned("w0.1")
    b.finish("w0.1", first.id, reward=0.5)
    b.say("driver.1", Drain("interrupted"))
    (told,) = b.told("evaluation")
    assert (told["n"], told["failed"], told["cancelled"]) == (1, 2, True)


def test_an_evaluation_that_is_asked_for_after_a_drain_is_answered_not_refused(bench: Any) -> None:
    b = bench()
    b.say("driver.1", Drain("interrupted"))
    b.say("driver.1", Evaluate("hard", "e2", [Task("a", {})], 2, SamplingParams()))
    assert b.take("driver.1", Refused) == []
    (told,) = b.told("evaluation")
    assert (told["name"], told["n"], told["failed"], told["cancelled"]) == ("hard", 0, 2, True)
    assert b.assigned("w0.1") == []


def test_drain_cancels_what_is_not_leased_and_keeps_what_is(bench: Any) -> None:
    b = bench()
    b.offer(2)
    b.play_all("w0.1")
    b.offer(2)
    b.lease(1)
    playing = [episode.id for episode in b.assigned("w0.1")]
    b.say("driver.1", Drain("asked to stop"))
    assert b.take("w0.1", Cancel) == [Cancel(sorted(playing))]
    assert b.core.state.fates == {Fate.CANCELLED: 2}
    b.step(1)
    b.say("learner.1", Retire(1))
    assert b.core.state.fates == {Fate.CANCELLED: 2, Fate.TRAINED: 2}
    b.say("learner.1", LeaseRequest(2))
    assert b.take("learner.1", NoMoreLeases) == [NoMoreLeases(1, "asked to stop")]


def test_a_drain_is_closed_when_its_fates_are_written(bench: Any) -> None:
    b = bench()
    b.offer(100)
    b.play_all("w0.1")
    b.lease(1)
    effects = b.core.handle(FromPeer("driver.1", b.epochs["driver.1"], 999, Drain("enough")), 0.0)
    kinds = [e.event.kind for e in effects if isinstance(e, Notify)]
    assert kinds == ["fates", "drained"]
    (told,) = (e.event.data for e in effects if isinstance(e, Notify) and e.event.kind == "drained")
    assert told == {"counts": {"cancelled": 2}, "open": 2}
    written = [e.row for e in effects if isinstance(e, Persist)]
    assert sum(getattr(row, "fate", None) is Fate.CANCELLED for row in written) == 2


def test_a_drain_without_a_group_is_closed_too(bench: Any) -> None:
    b = bench()
    b.say("driver.1", Drain("nothing to do"))
    assert b.told("drained") == [{"counts": {}, "open": 0}]


# ---- a full store --------------------------------------------------------------------------------


def full_after_one_lease(bench: Any, **settings: Any) -> Bench:
    """A run whose first lease is trained and published, and whose store is full."""
    b: Bench = bench(buffer_disk_limit=360, async_buffer_size=0, max_staleness=0, **settings)
    b.offer(100)
    b.play_all("w0.1")
    b.lease(1)
    b.step(1)
    b.publish(2, 1, 1)
    return b


def test_a_learner_that_waits_on_a_full_store_for_ever_is_told_once_with_flag_and_bytes(
    bench: Any,
) -> None:
    b = full_after_one_lease(bench)
    assert b.told("stuck") == []
    b.say("learner.1", LeaseRequest(2))
    b.do(Tick())
    (told,) = b.told("stuck")
    assert "--buffer-disk-limit is 360" in told["reason"]
    assert "holds 360 bytes" in told["reason"]
    assert (told["store_bytes"], told["limit_bytes"]) == (360, 360)


def test_a_full_store_is_no_dead_end_when_no_further_lease_will_come(bench: Any) -> None:
    b = full_after_one_lease(bench, num_rollout=1)
    b.say("learner.1", LeaseRequest(2))
    assert b.told("stuck") == []


def test_a_full_store_is_no_dead_end_while_a_group_is_played(bench: Any) -> None:
    b = bench(buffer_disk_limit=180)
    b.offer(2)
    first, second, *others = b.assigned("w0.1")
    for episode in (first, second):
        b.finish("w0.1", episode.id)
    b.judge_all("w0.1")
    b.say("learner.1", LeaseRequest(1))
    assert b.core.state.store_bytes == 180
    assert b.told("stuck") == []
    for episode in others:
        b.finish("w0.1", episode.id, outcome=Outcome.POISON)
    assert len(b.told("stuck")) == 1


def test_a_full_store_is_no_dead_end_while_a_lease_is_trained(bench: Any) -> None:
    b = bench(buffer_disk_limit=360)
    b.offer(2)
    b.play_all("w0.1")
    b.lease(1)
    b.say("learner.1", LeaseRequest(2))
    assert b.told("stuck") == []
    b.step(1)
    assert len(b.told("stuck")) == 1


# ---- trajectories kept for reading ---------------------------------------------------------------


def train_one(b: Bench, number: int) -> None:
    """One lease of 360 bytes, in a segment of its own, from its tasks to its retirement."""
    b.segment = number
    b.offer(2)
    b.play_all("w0.1")
    b.lease(number)
    b.step(number)
    b.publish(number + 1, number, number)
    b.say("learner.1", Retire(number))


def test_trained_trajectories_are_kept_up_to_the_bound_and_the_oldest_go_first(bench: Any) -> None:
    b = bench(keep_trajectories=720, async_buffer_size=0, max_staleness=0)
    gone = []
    for number in (1, 2, 3, 4):
        train_one(b, number)
        gone.append(list(b.dropped))
    assert gone == [[], [], [1], [1, 2]]
    assert sorted(b.core.state.segments) == [3, 4]


def test_kept_trajectories_never_fill_the_store(bench: Any) -> None:
    b = bench(buffer_disk_limit=360, async_buffer_size=0, max_staleness=0)
    train_one(b, 1)
    train_one(b, 2)
    assert b.dropped == []
    assert b.core.state.store_bytes == 0
    assert [data["full"] for data in b.told("store")] == [True, False, True, False]


# ---- messages that cannot be read ----------------------------------------------------------------


def test_a_report_that_cannot_be_read_is_refused_and_poisons_its_episode(bench: Any) -> None:
    b = bench()
    b.offer(1)
    first, second = b.assigned("w0.1")
    seq = b.garble("w0.1", episode=first.id)
    assert b.take("w0.1", Refused) == [Refused("cannot be read", seq)]
    b.finish("w0.1", second.id)
    assert b.core.state.fates == {Fate.POISON: 1}


def test_a_verdict_that_cannot_be_read_ends_its_group_as_a_failed_judge_would(bench: Any) -> None:
    b = bench()
    b.offer(1)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id)
    (order,) = b.take("w0.1", Judge)
    seq = b.garble("w0.1", group=order.group)
    assert b.take("w0.1", Refused) == [Refused("cannot be read", seq)]
    assert b.core.state.fates == {Fate.ENV_ERROR: 1}


def test_what_cannot_be_read_settles_nothing_for_those_it_does_not_belong_to(bench: Any) -> None:
    b = bench(workers=("w0", "w1"))
    b.offer(1)
    (mine,) = b.assigned("w0.1")
    for peer in ("w1.1", "learner.1"):
        b.garble(peer, episode=mine.id)
    b.garble("w0.1")
    assert b.core.state.fates == {}
    assert b.core.state.find_episode(mine.id).worker == "w0"
    b.join("w0", "worker", "2")
    b.garble("w0.1", episode=mine.id)
    assert b.take("w0.1", Refused)[-1].fatal


def test_every_figure_of_the_buffer_is_a_declared_metric(bench: Any) -> None:
    assert [n for n in bench().core.stats() if REGISTRY.find(f"buffer/{n}") is None] == []


# ---- attempts that failed ------------------------------------------------------------------------


def test_a_failed_attempt_is_counted_and_told_with_its_error_at_once(bench: Any) -> None:
    b = bench()
    b.offer(1)
    first, second = b.assigned("w0.1")
    b.finish("w0.1", first.id, outcome=Outcome.ENV_ERROR)
    (told,) = b.told("failures")
    assert told["counts"] == {"env_error": 1}
    assert told["first"] == {
        "env_error": {"episode": "00000001/0#0", "worker": "w0", "error": "why"}
    }
    assert (told["played"], told["retried"], told["lost"]) == (1, 1, 0)
    b.finish("w0.1", second.id)
    (again,) = b.assigned("w0.1")
    b.finish("w0.1", again.id)
    assert len(b.told("failures")) == 1
    figures = b.core.stats()
    assert figures["played_episodes"] == 2
    assert figures["retried_episodes"] == 1
    assert figures["failed_episodes"] == 0
    assert figures["failed_attempts/env_error"] == 1
    assert figures["failed_attempts/engine_error"] == figures["failed_attempts/poison"] == 0


def test_an_episode_is_counted_once_however_often_it_fails_and_attempts_by_outcome(
    bench: Any,
) -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    for outcome in (Outcome.ENGINE_ERROR, Outcome.ENV_ERROR, Outcome.ENV_ERROR):
        (episode,) = b.assigned("w0.1")
        b.finish("w0.1", episode.id, outcome=outcome)
        b.finish("w0.1", episode.id, outcome=outcome)
    told = b.told("failures")[-1]
    assert told["counts"] == {"engine_error": 1, "env_error": 2}
    assert (told["played"], told["retried"], told["lost"]) == (1, 1, 1)
    assert told["first"]["env_error"]["episode"] == "00000001/0#1"
    kinds = [kind for kind, _ in b.events]
    assert kinds.index("failures") < kinds.index("fates"), "the error is told before the run ends"


def test_what_a_lost_worker_held_and_what_was_refused_are_failed_attempts(bench: Any) -> None:
    b = bench(workers=("w0", "w1"), capacity=1)
    b.offer(1)
    (mine,) = b.assigned("w0.1")
    (other,) = b.assigned("w1.1")
    b.finish("w1.1", other.id, defect="513 logprobs")
    b.say("driver.1", PeerLost("w0"))
    told = b.told("failures")[-1]
    assert told["counts"] == {"engine_error": 1, "poison": 1}
    assert told["first"]["engine_error"]["error"] == "worker w0 was lost"
    assert told["first"]["engine_error"]["episode"] == str(mine.id)
    assert "refused: 513 logprobs" in told["first"]["poison"]["error"]
    assert (told["played"], told["retried"], told["lost"]) == (2, 1, 1)


def test_an_evaluations_failed_attempts_are_counted_too(bench: Any) -> None:
    b = bench()
    b.say("driver.1", Evaluate("heldout", "e1", [Task("a", {})] * 2, 1, SamplingParams()))
    first, _ = b.assigned("w0.1")
    b.finish("w0.1", first.id, outcome=Outcome.ENV_ERROR)
    assert b.told("failures")[-1]["first"]["env_error"]["episode"] == str(first.id)
    b.say("driver.1", PeerLost("w0"))
    told = b.told("failures")[-1]
    assert told["counts"] == {"engine_error": 2, "env_error": 1}
    assert told["first"]["engine_error"]["worker"] == "w0"
    assert (told["played"], told["retried"], told["lost"]) == (2, 2, 0)


def test_what_never_reached_its_worker_is_no_failure(bench: Any) -> None:
    b = bench()
    b.offer(1)
    b.assigned("w0.1")
    b.join("w0", "worker", "1", [])
    assert b.told("failures") == []


def test_the_end_of_a_drain_tells_the_failures_once_more_with_all_that_was_played(
    bench: Any,
) -> None:
    b = bench()
    b.offer(2)
    first, *others = b.assigned("w0.1")
    b.finish("w0.1", first.id, outcome=Outcome.ENV_ERROR)
    for episode in others:
        b.finish("w0.1", episode.id)
    b.say("driver.1", Drain("enough"))
    assert [data["played"] for data in b.told("failures")] == [1, 4]
    assert [kind for kind, _ in b.events][-2:] == ["failures", "drained"]


# ---- sampled tokens ------------------------------------------------------------------------------


def test_sampled_tokens_count_every_report_that_is_taken_once(bench: Any) -> None:
    b = bench()
    b.offer(1)
    first, second = b.assigned("w0.1")
    b.finish("w0.1", first.id, versions=((1, 4),))
    b.finish("w0.1", first.id, versions=((1, 4),))
    b.finish("w0.1", second.id, defect="false columns")
    evaluate = Evaluate("test", "test@0", [Task("t", {})], 1, SamplingParams())
    b.say("driver.1", evaluate)
    (played,) = b.assigned("w0.1")
    b.finish("w0.1", played.id, versions=((1, 7),))
    assert b.core.stats()["sampled_tokens"] == 4 + 7


def test_an_evaluation_is_played_outside_the_ledger_and_scored_over_done_episodes(
    bench: Any,
) -> None:
    b = bench(capacity=8)
    tasks = [Task("a", {}), Task("b", {})]
    b.say("driver.1", Evaluate("heldout", "e1", tasks, 1, SamplingParams(temperature=0.0)))
    first, second = b.assigned("w0.1")
    assert first.evaluation == "heldout"
    b.finish("w0.1", first.id, reward=0.5)
    for _ in range(2):
        b.finish("w0.1", second.id, outcome=Outcome.ENV_ERROR)
        second = (b.assigned("w0.1") or [second])[0]
    (told,) = b.told("evaluation")
    assert (told["n"], told["failed"], told["score"]) == (1, 1, 0.5)
    assert (told["version_min"], told["version_max"]) == (1, 1)
    assert b.core.state.minted == 0


def test_an_evaluation_gets_a_quarter_of_the_room_while_training_waits(bench: Any) -> None:
    b = bench(workers=("w0",), capacity=0, async_buffer_size=4, max_staleness=4)
    b.offer(4)
    tasks = [Task(str(i), {}) for i in range(8)]
    b.say("driver.1", Evaluate("heldout", "e1", tasks, 1, SamplingParams()))
    b.say("w0.1", Capacity(8))
    given = b.assigned("w0.1")
    assert sum(episode.evaluation is not None for episode in given) == 2


def test_a_result_that_was_told_is_told_again_when_asked_again(bench: Any) -> None:
    b = bench()
    order = Evaluate("heldout", "e1", [Task("a", {})], 1, SamplingParams())
    b.say("driver.1", order)
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id)
    b.say("driver.1", order)
    first, again = b.told("evaluation")
    assert first == again


def test_free_permits_are_averaged_over_workers_and_time(bench: Any) -> None:
    b = bench(workers=("w0", "w1"))
    b.say("w0.1", Capacity(1, PermitStats(free_share=0.0, window_s=3.0)))
    b.say("w1.1", Capacity(1, PermitStats(free_share=1.0, window_s=1.0)))
    interval = b.core.state.pacer.interval
    assert interval.free_s / interval.permits_s == 0.25


def test_a_fetch_is_answered_to_the_connection_that_asked(bench: Any) -> None:
    b = bench()
    effects = b.do(FromPeer("learner.1", b.epochs["learner.1"], 0, Fetch(1, [])))
    assert [type(effect).__name__ for effect in effects] == ["ReadRows"]


def test_an_interrupted_run_keeps_its_groups_for_the_program_that_continues_it(bench: Any) -> None:
    b = bench()
    b.offer(3)
    b.say("learner.1", LeaseRequest(1))
    held = {assignment.id for assignment in b.assigned("w0.1")}
    b.say("driver.1", Drain("interrupted", resumable=True))
    cancelled = {id for message in b.take("w0.1", Cancel) for id in message.episodes}
    assert held
    assert cancelled == held
    assert b.told("drained")
    assert b.told("fates") == []
    assert b.take("learner.1", Lease) == b.take("learner.1", NoMoreLeases) == []


def test_an_interrupted_run_gives_no_short_lease_in_haste(bench: Any) -> None:
    b = bench()
    b.offer(1)
    b.play_all("w0.1")
    b.say("learner.1", LeaseRequest(1))
    b.say("driver.1", Drain("interrupted", resumable=True))
    assert b.take("learner.1", Lease) == []


def test_an_echo_comes_back_after_all_that_was_told_before(bench: Any) -> None:
    b = bench()
    b.say("driver.1", Echo("now"))
    assert b.told("echo") == [{"id": "now"}]
