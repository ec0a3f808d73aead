"""The simulator sees broken promises, and its disk remembers what SQLite remembers."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import EpisodeRow, GroupRow, LedgerState, Mark, Row
from agentrl.sim import BrokenPromiseError, Faults, LearnerCost, Lognormal, Scenario, Workload
from agentrl.sim.columns import Columns
from agentrl.sim.durable import Durable
from agentrl.sim.faults import plan_faults
from agentrl.sim.run import build
from agentrl.sim.tally import Meters, Tally
from agentrl.sim.truth import PublishedWeights, Truth
from agentrl.types import (
    EpisodeId,
    Fate,
    GroupRows,
    GroupState,
    LeaseHeader,
    Outcome,
    PayloadRef,
    Task,
    TrajectoryMeta,
    TrajectoryRow,
    VersionRow,
)


def group(mint: int, versions: list[tuple[int, int]], segment: int = 1) -> GroupRows:
    id = EpisodeId(f"{mint:08d}", 0)
    num_tokens = sum(count for _, count in versions)
    meta = TrajectoryMeta(num_tokens, num_tokens, 1, 0.0, versions)
    row = TrajectoryRow(id, meta, PayloadRef("sim", segment, 0, 1, 0))
    return GroupRows(id.group, mint, str(mint), [id], [0.0], [{}], [row])


def lease(number: int, *groups: GroupRows) -> LeaseHeader:
    return LeaseHeader(number, list(groups))


@pytest.fixture
def truth() -> Truth:
    return Truth(max_staleness=1)


def history(truth: Truth, *parents: int | None) -> list[PublishedWeights]:
    """Versions 0, 1, ... of iterations 0, 1, ..., each grown from the one that is named."""
    pushed: list[PublishedWeights] = []
    for version, parent in enumerate(parents):
        iteration = 0 if parent is None else pushed[parent].iteration + 1
        pushed.append(PublishedWeights(version, iteration))
        truth.pushed(pushed[-1], parent)
    return pushed


def test_a_token_older_than_the_bound_may_be_leased_but_not_trained(truth: Truth) -> None:
    old, *_ = history(truth, None, 0, 1)
    truth.played(EpisodeId("00000001", 0), [(old, 5)])
    truth.trained(lease(3, group(1, [(0, 5)])), kept={1, 2})
    with pytest.raises(BrokenPromiseError, match="lease 3 trains 5 tokens of age 2 > 1"):
        truth.trained(lease(3, group(1, [(0, 5)])), kept={0, 1, 2})


def test_weights_that_a_recovery_left_behind_are_as_old_as_what_it_undid(truth: Truth) -> None:
    first, second, third = history(truth, None, 0, 1)
    truth.pushed(PublishedWeights(3, 0), 0)
    assert [truth.age(weights, lease=1) for weights in (first, second, third)] == [0, 2, 2]
    truth.played(EpisodeId("00000001", 0), [(second, 5)])
    with pytest.raises(BrokenPromiseError, match="age 2 > 1"):
        truth.trained(lease(1, group(1, [(1, 5)])), kept={1})


def test_a_recovery_that_pushed_nothing_undoes_what_it_left_and_no_more(truth: Truth) -> None:
    _, second, third = history(truth, None, 0, 1)
    truth.recovered(VersionRow(3, 1, 1))
    truth.recovered(VersionRow(4, 0, 0))
    assert (second.undone, third.undone) == (1, 1)


def test_weights_that_were_made_once_more_are_what_they_were(truth: Truth) -> None:
    first, second, third = (PublishedWeights(version, version) for version in range(3))
    truth.pushed(first, None)
    for number, weights in ((1, second), (2, third)):
        truth.trained(lease(number), kept=set())
        truth.pushed(weights, weights.version - 1)
    truth.recovered(VersionRow(3, 0, 0))
    truth.trained(lease(1), kept=set())
    assert [truth.age(weights, lease=3) for weights in (first, second, third)] == [2, 1, 2]
    truth.played(EpisodeId("00000001", 0), [(first, 1)])
    truth.trained(lease(2, group(1, [(0, 1)])), kept=set())  # of other rows than before
    assert [truth.age(weights, lease=3) for weights in (first, second, third)] == [2, 1, 2]


def test_a_version_number_that_is_given_twice_is_seen(truth: Truth) -> None:
    history(truth, None, 0)
    with pytest.raises(BrokenPromiseError, match="version 1 was given to two sets"):
        truth.pushed(PublishedWeights(1, 0), 0)


def test_a_group_in_two_leases_is_seen_unless_a_recovery_undid_the_first(truth: Truth) -> None:
    (weights,) = history(truth, None)
    truth.played(EpisodeId("00000001", 0), [(weights, 5)])
    truth.trained(lease(1, group(1, [(0, 5)])), kept={0})
    with pytest.raises(BrokenPromiseError, match="trained in lease 2 and was trained in lease 1"):
        truth.trained(lease(2, group(1, [(0, 5)])), kept={0})
    truth.recovered(VersionRow(1, 0, 0))
    truth.trained(lease(2, group(1, [(0, 5)])), kept={0})


def test_an_episode_that_nobody_played_is_seen(truth: Truth) -> None:
    with pytest.raises(BrokenPromiseError, match="00000001/0#0 is leased and was never played"):
        truth.trained(lease(1, group(1, [(0, 5)])), kept={0})


@pytest.mark.parametrize(
    ("fates", "counted", "said"),
    [
        ({1: Fate.FILTERED, 3: Fate.FILTERED}, 2, "do not have the numbers"),
        ({1: Fate.FILTERED, 2: None}, 1, r"open: \[2\]"),
        ({1: Fate.FILTERED}, 2, "minted 1, 2 have a fate"),
        ({1: Fate.TRAINED}, 1, r"groups \[1\] have the fate trained, or were"),
    ],
)
def test_fates_that_do_not_add_up_are_seen(
    truth: Truth, fates: dict[int, Fate | None], counted: int, said: str
) -> None:
    with pytest.raises(BrokenPromiseError, match=said):
        truth.ended(fates, counted)


def test_columns_that_are_dropped_too_early_are_seen() -> None:
    columns = Columns(segment_bytes=1)
    first, second = columns.append(3), columns.append(3)
    assert (first.segment, second.segment) == (1, 2)
    columns.check(lease(1, group(1, [], segment=1)))
    columns.drop([1])
    with pytest.raises(BrokenPromiseError, match="whose segment 1 is dropped"):
        columns.check(lease(1, group(1, [], segment=1)))
    columns.drop([2])
    assert columns.append(3).segment == 3


def test_a_finished_episode_that_changes_is_seen() -> None:
    durable = Durable(most_charged=9)
    durable.commit([EpisodeRow(1, 0, outcome=Outcome.DONE)])
    with pytest.raises(BrokenPromiseError, match="1/0 was done in attempt 0, and is played again"):
        durable.commit([EpisodeRow(1, 0, attempt=1)])


def test_minting_beyond_the_bound_is_seen_and_a_push_makes_room() -> None:
    durable = Durable(most_charged=2)
    first, second, third = (GroupRow(mint, Task(str(mint), {}), 1, mint) for mint in (1, 2, 3))
    durable.commit([first, second])
    with pytest.raises(BrokenPromiseError, match="group 3 makes 3 charged groups, of at most 2"):
        Durable(most_charged=2).commit([first, second, third])
    durable.commit([msgspec.structs.replace(first, lease=1), Mark("published_through", 1), third])
    fourth = GroupRow(4, Task("4", {}), 1, 4)
    durable.commit([msgspec.structs.replace(second, fate=Fate.FILTERED), fourth])
    durable.commit([Mark("published_through", 0)])  # a recovery: lease 1 is charged again
    with pytest.raises(BrokenPromiseError, match="group 5 makes 4 charged groups"):
        durable.commit([GroupRow(5, Task("5", {}), 1, 5)])


def test_a_task_that_is_minted_again_without_need_is_seen() -> None:
    durable = Durable(most_charged=9)
    first, again = GroupRow(1, Task("1", {}), 0, 1), GroupRow(2, Task("1", {}), 0, 1, repeat=1)
    stale = msgspec.structs.replace(first, state=GroupState.RETIRED, fate=Fate.STALE)
    durable.commit([first, stale])
    assert durable.load().stale == (stale,)
    durable.commit([again])
    assert durable.load().stale == ()
    with pytest.raises(BrokenPromiseError, match="task 1 is minted as group 3, and group 2 of it"):
        durable.commit([GroupRow(3, Task("1", {}), 0, 1, repeat=2)])


# ---- the measures ----


def test_a_group_that_is_never_leased_is_starved() -> None:
    now = iter(Meters(float(t), 0.0, 0.0) for t in (0, 1))
    tally = Tally(max_staleness=1, meters=lambda: next(now))
    tasks = [str(mint) for mint in range(1, 11)]
    for task in tasks:
        tally.sampled(task, 10)
    tally.reached(0)
    header = lease(1, *(group(mint, [(0, 10)]) for mint in range(1, 10)))
    tally.trained(header, {0: 0}, wait_s=0.0, train_s=1.0)
    tally.reached(1)
    assert tally.result(0, {task: float(task) for task in tasks}).starvation == 0.0


def test_masked_tokens_starve_the_tasks_that_they_belong_to() -> None:
    now = iter(Meters(float(t), t / 2, t / 4) for t in (0, 10, 30))
    tally = Tally(max_staleness=1, meters=lambda: next(now))
    tasks = [str(mint) for mint in range(1, 11)]
    for task in tasks:
        tally.sampled(task, 10)
    tally.reached(0)
    young, old = [(5, 10)], [(2, 5), (5, 5)]
    tally.trained(
        lease(1, *(group(m, young) for m in range(1, 6))), {5: 0}, wait_s=1.0, train_s=8.0
    )
    tally.reached(1)
    rest = (group(m, old if m == 10 else young) for m in range(6, 11))
    tally.trained(lease(2, *rest), {5: 1, 2: 3}, wait_s=5.0, train_s=12.0)
    tally.reached(2)
    result = tally.result(1, {task: float(task) for task in tasks})
    assert result.iteration_s == 20.0
    assert result.masked_share == pytest.approx(5 / 50)
    assert result.starvation == 1.0
    assert result.starvation_unmasked == pytest.approx((5 / 10) / (95 / 100))
    assert (result.max_age, result.max_trained_age) == (3, 1)
    assert result.learner_idle == pytest.approx(5 / 20)
    assert result.learner_busy == pytest.approx(12 / 20), "the rest of the time are pushes"
    assert result.engine_idle == pytest.approx(1 / 2)
    assert result.permit_idle == pytest.approx(1 / 4)


# ---- the disk ----


class TwoDisks(Durable):
    """Writes everything into a real ledger too."""

    def __init__(self, ledger: Ledger, most_charged: int) -> None:
        super().__init__(most_charged)
        self._ledger = ledger
        self.num_loads = 0

    def commit(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        super().commit(rows)
        self._ledger.commit(rows)

    def load(self) -> LedgerState:
        self.num_loads += 1
        found, real = super().load(), self._ledger.load()
        assert in_order(found) == in_order(real)
        return real


def in_order(state: LedgerState) -> LedgerState:
    marks = sorted(state.marks, key=lambda mark: mark.key)
    return msgspec.structs.replace(state, marks=tuple(marks))


def test_a_restart_reads_what_sqlite_would_give_it(tmp_path: Path) -> None:
    scenario = Scenario(
        workload=Workload(tokens=Lognormal(100.0, 0.5), turns=3, tool_s=Lognormal(4.0, 1.0)),
        iterations=8,
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        max_staleness=1,
        staleness_policy="drop",
        num_engines=1,
        num_learner_gpus=1,
        learner=LearnerCost(step_gpu_s=5.0, push_s=0.5),
        faults=Faults(buffer_s=5.0, worker_s=20.0, learner_s=30.0, down_s=1.0, filtered_share=0.2),
        segment_bytes=5_000,
        heartbeat_s=1.0,
        liveness_s=10.0,
    )
    world, processes = build(scenario)
    with Ledger(tmp_path / "ledger.db") as ledger:
        disks = world.shell.durable = TwoDisks(ledger, scenario.most_charged)
        processes.start()
        plan_faults(world, processes)
        world.timeline.run()
        assert disks.num_loads > 5
        assert set(world.shell.durable.fates().values()) >= {
            Fate.TRAINED,
            Fate.FILTERED,
            Fate.STALE,
        }


def test_an_iteration_that_is_done_again_is_no_progress() -> None:
    now = 0.0
    tally = Tally(0, lambda: Meters(now, 0.0, 0.0))
    for now, number in ((1.0, 0), (2.0, 1), (3.0, 0), (4.0, 1)):  # noqa: B007 - `meters` reads it
        tally.reached(number)
    assert tally.reached_at == 2.0
    now = 5.0
    tally.reached(2)
    assert tally.reached_at == 5.0
