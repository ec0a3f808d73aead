"""`--max-total-sampled-tokens`: no group is minted once the run has sampled so many tokens, what
has begun is trained, and the count goes on where another program left it."""

from itertools import product
from pathlib import Path

import pytest

from agentrl.buffer import BufferCore
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import LedgerState
from agentrl.types import Fate, GroupState, Outcome
from agentrl.wire.messages import Assign, Lease, LeaseRequest, NoMoreLeases, Retire, TaskCredit
from tests.unit.buffer_bench import Bench, bench


def spent() -> Bench:
    """A run of 4 groups of 2 episodes, each of 4 tokens, of which 8 may be sampled: the first group
    has sampled them, of the second one an episode is played, the others have not begun."""
    b = bench(max_total_sampled_tokens=8, capacity=3)
    b.supply()
    first, second, *_ = begun = b.assigned("w0.1")
    b.finish("w0.1", first.id)
    b.finish("w0.1", second.id)
    b.inbox["w0.1"].append(Assign(begun[2:]))
    return b


def no_more(b: Bench, number: int) -> NoMoreLeases:
    b.say("learner.1", LeaseRequest(number))
    return b.take("learner.1", NoMoreLeases)[-1]


def continued(b: Bench, ledger: LedgerState, **settings: object) -> Bench:
    """Another program, which begins with what the first one wrote."""
    again = Bench(**settings)
    again.core = BufferCore(again.core.settings, ledger)
    again.offset = b.offset
    for name, role in (("driver", "driver"), ("learner", "learner"), ("w0", "worker")):
        again.join(name, role, incarnation="2")  # type: ignore[arg-type]
    return again


def test_a_group_that_has_begun_is_trained_and_no_other_is_minted() -> None:
    b = spent()
    state = b.core.state
    assert state.total_sampled_tokens == 8
    assert state.fates == {Fate.CANCELLED: 2}
    assert "8 tokens are sampled of --max-total-sampled-tokens 8" in state.reasons[Fate.CANCELLED]
    assert b.told("budget")[0]["open"] == 2
    b.play_all("w0.1")
    assert b.take("driver.1", TaskCredit)[1:] == []
    header = b.lease(1)
    assert [rows.mint for rows in header.groups] == [1, 2]
    assert header.last
    b.step(1)
    b.publish(2, 1, 1)
    assert b.take("driver.1", TaskCredit) == []
    assert no_more(b, 2).reason == "16 tokens are sampled of --max-total-sampled-tokens 8"
    assert len(b.told("budget")) == 1


def test_the_last_lease_may_be_short() -> None:
    b = bench(max_total_sampled_tokens=4, capacity=2)
    b.supply()
    first, second = b.assigned("w0.1")
    b.finish("w0.1", first.id)  # the second group has not begun
    assert b.core.state.fates == {Fate.CANCELLED: 3}
    b.finish("w0.1", second.id)
    b.judge_all("w0.1")
    header = b.lease(1)
    assert [rows.mint for rows in header.groups] == [1]
    assert header.last


def test_below_the_budget_nothing_is_different() -> None:
    b = bench(max_total_sampled_tokens=17)
    b.supply()
    b.play_all("w0.1", versions=((1, 2),))
    assert b.core.state.total_sampled_tokens == 16
    assert b.core.state.fates == {}
    assert b.told("budget") == []
    b.lease(1)
    b.step(1)
    b.publish(2, 1, 1)
    assert b.take("driver.1", TaskCredit)[-1].num_tasks == 2


def test_attempts_that_fail_and_evaluations_sample_nothing_of_it() -> None:
    b = bench(max_total_sampled_tokens=8)
    b.supply()
    first = b.assigned("w0.1")[0]
    b.finish("w0.1", first.id, outcome=Outcome.ENV_ERROR)
    assert b.core.state.total_sampled_tokens == 0


def test_a_run_of_which_all_is_sampled_ends_without_a_lease_when_it_is_continued(
    tmp_path: Path,
) -> None:
    b = spent()
    b.play_all("w0.1")
    b.lease(1)
    b.step(1)
    b.publish(2, 1, 1)
    b.say("learner.1", Retire(1))
    with Ledger(tmp_path / "ledger.db") as ledger:
        for _ in range(2):  # what is written twice is not counted twice
            ledger.commit(b.rows)
        found = ledger.load()
    assert found.total_sampled_tokens == b.core.state.total_sampled_tokens == 16
    assert not found.groups  # of which all are retired
    again = continued(b, found, max_total_sampled_tokens=16)
    assert again.take("driver.2", TaskCredit) == []
    again.say("learner.2", LeaseRequest(2))
    assert "16 tokens" in again.take("learner.2", NoMoreLeases)[-1].reason
    more = continued(b, found, max_total_sampled_tokens=17)
    assert more.take("driver.2", TaskCredit)[-1].num_tasks == 4


def test_a_killed_run_finishes_what_had_begun_when_its_tokens_were_sampled(tmp_path: Path) -> None:
    b = spent()
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit(b.rows)
        found = ledger.load()
    assert found.total_sampled_tokens == 8
    again = continued(b, found, max_total_sampled_tokens=8)
    states = {mint: row.state for mint, row in again.core.state.groups.items()}
    assert states == {1: GroupState.MINTED, 2: GroupState.MINTED}


#: B, I and S, but for an interval of more than 1 in which no token may be old.
AHEAD = [(b, i, s) for b, i, s in product((0, 1, 3), (1, 2), (0, 1, 3)) if s or i == 1]


@pytest.mark.parametrize(("ahead", "interval", "staleness"), AHEAD)
def test_a_run_ends_with_its_tokens_however_far_it_is_ahead(
    ahead: int, interval: int, staleness: int
) -> None:
    b = bench(
        max_total_sampled_tokens=40,
        capacity=3,
        async_buffer_size=ahead,
        update_weights_interval=interval,
        max_staleness=staleness,
    )
    version = 1
    for number in range(1, 20):
        b.supply()
        b.play_all("w0.1", versions=((version, 4),))
        b.say("learner.1", LeaseRequest(number))
        if not b.take("learner.1", Lease):
            break
        b.step(number)
        if number % interval == 0:
            version += 1
            b.publish(version, version - 1, number)
    assert len(b.take("learner.1", NoMoreLeases)) == 1
    state = b.core.state
    assert 40 <= state.total_sampled_tokens < 40 + 3 * 4
    assert {row.state for row in state.groups.values()} <= {GroupState.STEPPED}
    assert set(state.fates) <= {Fate.CANCELLED, Fate.SURPLUS}
