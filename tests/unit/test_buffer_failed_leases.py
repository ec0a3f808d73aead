"""A lease that ends one learner after the other is given up, and its number made again."""

from typing import Any

import pytest

from agentrl.buffer.leases import LEASE_DEATHS
from agentrl.buffer.rows import GroupRow, LeaseRow
from agentrl.types import Fate, GroupState, LeaseHeader, VersionRow
from agentrl.wire.messages import (
    Lease,
    LeaseRequest,
    PeerLost,
    PushDone,
    Refused,
    Retire,
    Stepped,
    Welcome,
)
from tests.unit.buffer_bench import Bench, bench


def begin(b: Bench, incarnation: str, number: int, version: int) -> str:
    """A learner comes, begins after iteration `number` - 1 and asks for lease `number`."""
    peer = b.join("learner", "learner", incarnation)
    row = VersionRow(version, 1, number - 1)
    b.say(peer, PushDone(row, number - 1))
    b.say(peer, LeaseRequest(number))
    return peer


def fail(b: Bench, incarnation: str) -> None:
    b.say("driver.1", PeerLost("learner", incarnation, failed=True))


def played(**settings: Any) -> Bench:
    b = bench(async_buffer_size=4, max_staleness=4, **settings)
    b.supply()
    b.play_all("w0.1")
    return b


def mints(header: LeaseHeader) -> list[int]:
    return [group.mint for group in header.groups]


def end_learners(b: Bench, number: int, count: int, first: int = 2) -> None:
    for life in range(first, first + count):
        begin(b, str(life), number, version=life)
        fail(b, str(life))


def test_a_lease_that_has_ended_three_learners_is_given_up_by_name_and_made_again() -> None:
    b = played()
    lost = mints(b.lease(1))
    fail(b, "1")
    end_learners(b, 1, LEASE_DEATHS - 1)
    reason = f"lease 1 ended the learner {LEASE_DEATHS} times"
    gone = [row for row in b.rows if isinstance(row, GroupRow) and row.fate is not None]
    assert [(row.mint, row.fate, row.reason) for row in gone] == [
        (mint, Fate.POISON, reason) for mint in lost
    ]
    told = b.told("lease_failed")
    assert [(data["number"], data["deaths"], data["given_up"]) for data in told] == [
        (1, 1, False), (1, 2, False), (1, 3, True),
    ]  # fmt: skip
    assert (told[-1]["groups"], told[-1]["tasks"]) == (["00000001", "00000002"], ["0", "1"])
    learner = begin(b, "9", 1, version=9)
    (lease,) = b.take(learner, Lease)
    assert (lease.header.number, mints(lease.header)) == (1, [3, 4])
    b.say(learner, Stepped(1, False, 0.0, 0.0, 1.0))
    b.say(learner, Retire(1))
    assert b.core.state.fates == {Fate.POISON: 2, Fate.TRAINED: 2}


@pytest.mark.parametrize("held", [0, 1])
def test_a_learner_hears_how_often_a_lease_that_weights_hold_was_made_of_others(held: int) -> None:
    b = played()
    b.lease(1)
    if held:
        b.say("learner.1", Stepped(1, False, 0.0, 0.0, 1.0))
        b.say("learner.1", PushDone(VersionRow(2, 1, 1), 1))
    end_learners(b, 1, LEASE_DEATHS, first=3)
    assert b.told("lease_failed")[-1]["given_up"]
    peer = b.join("learner", "learner", "9")
    assert b.take(peer, Welcome)[-1].remade == held


def test_a_repeated_message_and_an_end_by_somebody_elses_hand_count_for_nothing() -> None:
    b = played()
    b.lease(1)
    for _ in range(5):
        fail(b, "1")
    b.say("driver.1", PeerLost("learner", "1"))
    begin(b, "2", 1, version=2)
    b.say("driver.1", PeerLost("learner", "2"))
    assert [data["deaths"] for data in b.told("lease_failed")] == [1]
    assert b.told("lease_left") == [
        {"number": 1, "groups": ["00000001", "00000002"], "tasks": ["0", "1"]}
    ]
    assert b.core.state.leases[1].mints == (1, 2)


def test_only_the_learner_that_was_given_a_lease_counts_against_it() -> None:
    b = played()
    b.lease(1)
    b.step(1)
    fail(b, "1")  # between two leases
    b.join("learner", "learner", "2")
    fail(b, "2")  # before it asked
    b.say("driver.1", PeerLost("learner", "never seen", failed=True))
    b.say("driver.1", PeerLost("w0", "1", failed=True))
    b.say("driver.1", PeerLost("learner", "2"))
    b.say("driver.1", PeerLost("w0", "1"))
    assert b.told("lease_failed") == b.told("lease_left") == []


def test_a_learner_that_waits_for_a_lease_has_none() -> None:
    b = bench()
    b.say("learner.1", LeaseRequest(1))
    fail(b, "1")
    assert b.told("lease_failed") == []


def test_a_step_clears_what_was_counted() -> None:
    b = played()
    b.lease(1)
    fail(b, "1")
    end_learners(b, 1, LEASE_DEATHS - 2)
    learner = begin(b, "8", 1, version=8)
    b.say(learner, Stepped(1, False, 0.0, 0.0, 1.0))
    assert b.core.state.leases[1].ended == ()
    begin(b, "9", 1, version=9)  # a recovery: it is open again
    fail(b, "9")
    assert b.told("lease_failed")[-1]["deaths"] == 1


def test_deaths_are_counted_over_recoveries_to_an_older_checkpoint() -> None:
    """Each learner makes iteration 1 again before lease 2 ends it."""
    b = played()
    first, second = mints(b.lease(1)), []
    b.step(1)
    second = mints(b.lease(2))
    fail(b, "1")
    for life in range(2, LEASE_DEATHS + 1):
        learner = begin(b, str(life), 1, version=life)
        b.say(learner, Stepped(1, False, 0.0, 0.0, 1.0))
        b.say(learner, LeaseRequest(2))
        fail(b, str(life))
    learner = begin(b, "9", 1, version=9)
    assert mints(b.take(learner, Lease)[-1].header) == first
    b.say(learner, Stepped(1, False, 0.0, 0.0, 1.0))
    b.say(learner, LeaseRequest(2))
    assert set(mints(b.take(learner, Lease)[-1].header)).isdisjoint(second)


def test_groups_of_later_leases_wait_again_for_a_lease() -> None:
    """Leases 1 to 3 were stepped; a recovery opens them, and lease 2 ends the learners."""
    b = played()
    headers = []
    for number in (1, 2, 3):
        headers.append(mints(b.lease(number)))
        b.step(number)
    learner = begin(b, "2", 2, version=2)
    fail(b, "2")
    end_learners(b, 2, LEASE_DEATHS - 1, first=3)
    state = b.core.state
    assert (state.last_lease, sorted(state.leases), sorted(state.unmade)) == (1, [1], [2, 3])
    assert [state.groups[mint].state for mint in headers[2]] == [GroupState.READY] * 2
    assert state.charged == len(state.unleased)
    learner = begin(b, "9", 2, version=9)
    assert mints(b.take(learner, Lease)[-1].header) == headers[2]


def test_a_report_of_an_iteration_of_a_lease_that_was_given_up_changes_nothing() -> None:
    b = played()
    b.lease(1)
    fail(b, "1")
    end_learners(b, 1, LEASE_DEATHS - 1)
    last = f"learner.{LEASE_DEATHS}"
    b.say(last, Stepped(1, False, 0.0, 0.0, 1.0))
    assert "never given" in b.take(last, Refused)[-1].reason
    assert b.core.state.fates == {Fate.POISON: 2}


def test_what_was_counted_and_given_up_is_written_down() -> None:
    b = played()
    b.lease(1)
    fail(b, "1")
    end_learners(b, 1, LEASE_DEATHS - 1)
    rows = [row for row in b.rows if isinstance(row, LeaseRow)]
    assert [(row.mints, len(row.ended), row.given_up) for row in rows] == [
        ((1, 2), 0, ()), ((1, 2), 1, ()), ((1, 2), 2, ()), ((), 0, (1, 2)),
    ]  # fmt: skip


def test_a_run_of_so_many_batches_makes_a_given_up_one_again() -> None:
    b = played(num_rollout=1)
    b.lease(1)
    fail(b, "1")
    end_learners(b, 1, LEASE_DEATHS - 1)
    learner = begin(b, "9", 1, version=9)
    b.supply()
    b.play_all("w0.1")
    assert b.take(learner, Lease)[-1].header.last
