"""The policy drop: what is given up, when, and what becomes of its task."""

from pathlib import Path
from typing import Any

from agentrl.buffer import BufferCore
from agentrl.buffer.ledger import Ledger
from agentrl.types import Fate, VersionRow
from agentrl.wire.messages import (
    Drain,
    Lease,
    LeaseRequest,
    NoMoreLeases,
    PushDone,
    Retire,
    TaskCredit,
    Tasks,
)
from tests.unit.buffer_bench import Bench, bench

Versions = tuple[tuple[int, int], ...]
OLD: Versions = ((1, 4),)
MIXED: Versions = ((1, 1), (2, 3))
NEW: Versions = ((2, 4),)
PAYLOAD_BYTES = 90  # of a report on the bench


def dropping(**settings: Any) -> Bench:
    """Groups of one episode, S = 1: at most 2 N of them are charged."""
    return bench(
        **{
            "staleness_policy": "drop",
            "n_samples_per_prompt": 1,
            "async_buffer_size": 4,
            "max_staleness": 1,
            **settings,
        }
    )


def finish(b: Bench, mint: int, versions: Versions) -> None:
    """Finish and judge the one episode of this group."""
    b.finish("w0.1", b.core.state.episode_id(b.core.state.episodes[mint, 0]), versions=versions)
    b.judge_all("w0.1")


def iterate(b: Bench, number: int) -> None:
    """Lease `number`, step it, and publish version number + 1."""
    b.lease(number)
    b.step(number)
    b.publish(number + 1, number, number)


def before_lease_three(**settings: Any) -> Bench:
    """N = 2 and two iterations are made; groups 5 and 6 play, and two more may be minted."""
    b = dropping(**settings)
    b.offer(4)
    for number, versions in ((1, OLD), (2, NEW)):
        for mint in (2 * number - 1, 2 * number):
            finish(b, mint, versions)
        if number == 2:
            b.offer(2)
        iterate(b, number)
    return b


def test_a_group_too_old_for_the_next_lease_is_stale_and_its_task_is_minted_again() -> None:
    b = before_lease_three()
    charged = b.core.state.charged
    finish(b, 5, OLD)
    assert b.core.state.fates == {Fate.STALE: 1}
    assert b.core.state.charged == charged  # its place has gone to the same task at once
    newest = b.core.state.groups[7]
    assert (newest.task.id, newest.cursor, newest.repeat) == ("4", 5, 1)


def test_one_old_token_is_enough_and_tokens_at_the_bound_are_kept() -> None:
    b = before_lease_three()
    finish(b, 5, MIXED)
    finish(b, 6, NEW)
    assert b.core.state.fates == {Fate.STALE: 1}
    assert b.core.state.ready == {6}


def test_a_ready_group_is_dropped_as_soon_as_the_lease_that_could_take_it_is_made() -> None:
    b = before_lease_three()
    b.offer(2)
    for mint in (5, 6, 7):
        finish(b, mint, NEW)
    assert b.core.state.ready == {5, 6, 7}
    b.lease(3)
    assert b.core.state.ready == set()
    assert b.core.state.fates == {Fate.STALE: 1}


def test_under_mask_the_same_group_waits_for_its_lease() -> None:
    b = before_lease_three(staleness_policy="mask")
    finish(b, 5, OLD)
    finish(b, 6, OLD)
    assert [group.mint for group in b.lease(3).groups] == [5, 6]
    assert b.core.state.fates == {}


def test_a_lease_that_exists_is_given_again_as_it_was_however_old_its_tokens_are() -> None:
    b = before_lease_three()
    for mint in (5, 6):
        finish(b, mint, NEW)
    first = b.lease(3)
    b.step(3)
    learner = b.join("learner", "learner", "2")
    b.say(learner, PushDone(VersionRow(9, 1, 0), 0))
    b.say(learner, LeaseRequest(3))
    assert b.take(learner, Lease)[-1].header == first


def test_a_task_is_minted_again_twice_and_then_given_up() -> None:
    b = before_lease_three()
    for mint in (5, 7, 8):
        finish(b, mint, OLD)
    assert b.core.state.fates == {Fate.STALE: 3}
    assert b.core.minter.waiting_again == ()
    assert 9 not in b.core.state.groups
    figures = b.core.stats()
    assert (figures["repeated_groups"], figures["given_up_tasks"]) == (2, 1)


def test_a_task_that_waits_to_be_minted_again_goes_before_those_that_are_offered() -> None:
    b = before_lease_three(buffer_disk_limit=5 * PAYLOAD_BYTES)
    finish(b, 5, OLD)
    b.offer(2)
    assert b.core.state.minted == 6  # the store is full
    b.say("learner.1", Retire(2))
    assert [b.core.state.groups[mint].task.id for mint in (7, 8)] == ["4", "6"]


def test_every_token_of_a_dropped_group_counts_for_pacing_at_the_next_lease() -> None:
    b = before_lease_three()
    finish(b, 5, MIXED)
    assert b.core.state.pacer.row.dropped_tokens == 4
    for mint in (6, 7):
        finish(b, mint, NEW)
    before = b.core.state.pacer.row.old_share
    b.lease(3)
    assert b.core.state.pacer.row.old_share == 0.9 * before + 0.1 * 4 / 12
    assert b.core.state.pacer.row.dropped_tokens == 0


def test_a_source_that_ended_is_not_exhausted_while_a_task_may_be_minted_again() -> None:
    b = before_lease_three()
    cursor = b.take("driver.1", TaskCredit)[-1].cursor
    b.say("driver.1", Tasks([], cursor, exhausted=True))
    b.say("learner.1", LeaseRequest(3))
    finish(b, 6, NEW)
    finish(b, 5, OLD)
    assert b.core.state.last_lease == 2
    finish(b, 7, NEW)
    assert b.core.state.leases[3].last
    b.say("learner.1", LeaseRequest(4))
    assert b.take("learner.1", NoMoreLeases) == [NoMoreLeases(3, "no task is left")]


def test_weights_that_a_recovery_undid_make_ready_groups_stale() -> None:
    b = before_lease_three()
    finish(b, 5, ((3, 4),))
    learner = b.join("learner", "learner", "2")
    assert b.core.state.fates == {}
    b.say(learner, PushDone(VersionRow(9, 1, 0), 0))
    assert b.core.state.fates == {Fate.STALE: 1}


def test_a_run_that_is_interrupted_drops_nothing_more() -> None:
    b = before_lease_three()
    b.finish("w0.1", b.core.state.episode_id(b.core.state.episodes[5, 0]), versions=OLD)
    b.say("driver.1", Drain("interrupted", resumable=True))
    b.judge_all("w0.1")
    assert b.core.state.ready == {5}
    assert b.core.state.fates == {}


def test_a_restarted_buffer_knows_which_tasks_wait_to_be_minted_again(tmp_path: Path) -> None:
    b = before_lease_three(buffer_disk_limit=5 * PAYLOAD_BYTES)
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit(b.rows)
        assert BufferCore(b.core.settings, ledger.load()).minter.waiting_again == ()
        finish(b, 5, OLD)
        ledger.commit(b.rows)
        assert BufferCore(b.core.settings, ledger.load()).minter.waiting_again == (5,)
        b.say("learner.1", Retire(2))
        ledger.commit(b.rows)
        assert BufferCore(b.core.settings, ledger.load()).minter.waiting_again == ()
