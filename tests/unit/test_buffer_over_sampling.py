"""Over-sampling: what is in the making for the next lease, what a filter takes, and the surplus."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.buffer import BufferCore
from agentrl.buffer.admission import Pacer
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import PacingRow
from agentrl.buffer.settings import BufferSettings
from agentrl.errors import ConfigError
from agentrl.types import EpisodeId, Fate
from agentrl.wire.messages import Cancel, GroupScore, LeaseRequest, NoMoreLeases, ScoreGroup
from tests.unit.buffer_bench import Bench, bench


def settings(over: int | None, b: int = 4, i: int = 1) -> BufferSettings:
    return BufferSettings(
        address="ipc://none",
        rollout_batch_size=8,
        async_buffer_size=b,
        max_staleness=b + i - 1,
        update_weights_interval=i,
        over_sampling_batch_size=over,
    )


def judge(b: Bench, *, keep: set[int]) -> None:
    """Finish what plays; judge it so that only these groups are kept."""
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id)
    for order in b.take("w0.1", ScoreGroup):
        b.say("w0.1", GroupScore(order.group, [0.0], int(order.group) in keep, "dull"))


@pytest.mark.parametrize(
    ("over", "b", "i", "least", "start", "most"),
    [
        (None, 4, 1, 8, 24, 40),
        (8, 4, 1, 8, 24, 40),
        (12, 4, 1, 12, 24, 40),
        (32, 4, 1, 32, 32, 40),
        (40, 4, 1, 40, 40, 40),
        (12, 4, 2, 20, 32, 48),
    ],
)
def test_pacing_never_leaves_less_in_the_making_than_is_over_sampled(
    over: int | None, b: int, i: int, least: int, start: int, most: int
) -> None:
    run = settings(over, b, i)
    assert Pacer(run, PacingRow(cap=0.0)).cap == least
    assert Pacer(run, None).cap == start
    assert Pacer(run, PacingRow(cap=1e9)).cap == most == run.charged_limit


def test_more_than_the_hard_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 40 may be"):
        settings(41)


def test_the_hard_bound_holds_while_groups_are_filtered_and_each_is_replaced_by_one() -> None:
    b = bench(n_samples_per_prompt=1, over_sampling_batch_size=4)
    b.supply()
    assert b.core.state.charged == 4
    judge(b, keep={2})
    assert b.core.state.fates == {Fate.FILTERED: 3}
    b.supply()
    assert b.core.state.minted == 4 + 3
    assert b.core.state.charged == 4


def test_surplus_groups_wait_for_the_next_lease_and_go_first() -> None:
    b = bench(n_samples_per_prompt=1, over_sampling_batch_size=4)
    b.supply()
    b.say("learner.1", LeaseRequest(1))
    judge(b, keep={1, 3, 4})
    assert b.core.state.leases[1].mints == (1, 3)
    assert b.core.state.ready == {4}
    b.step(1)
    b.publish(2, 1, 1)
    b.supply()
    judge(b, keep=set(range(5, 20)))
    assert [group.mint for group in b.lease(2).groups] == [4, 5]


def test_no_surplus_is_made_that_the_run_has_no_iteration_for() -> None:
    b = bench(n_samples_per_prompt=1, over_sampling_batch_size=4, num_rollout=1)
    b.supply()
    assert b.core.state.minted == 2
    judge(b, keep={2})
    b.supply()
    assert b.core.state.minted == 3
    judge(b, keep={3})
    assert [group.mint for group in b.lease(1).groups] == [2, 3]
    assert b.core.state.fates == {Fate.FILTERED: 1}


def on_policy(**changes: Any) -> Bench:
    """Two groups to an iteration, of one episode each, and four in the making."""
    return bench(
        **{
            "n_samples_per_prompt": 1,
            "async_buffer_size": 0,
            "max_staleness": 0,
            "over_sampling_batch_size": 4,
            **changes,
        }
    )


def playing(b: Bench) -> dict[int, EpisodeId]:
    """Episodes that w0 was given since the last call, by group."""
    return {int(episode.id.group): episode.id for episode in b.assigned("w0.1")}


def full_with(b: Bench, *done: int) -> dict[int, EpisodeId]:
    """Finish these groups of those that play, and make the lease; returns all that played."""
    b.supply()
    episodes = playing(b)
    for mint in done:
        b.finish("w0.1", episodes[mint])
    b.judge_all("w0.1")
    return episodes


def test_on_policy_what_is_left_when_an_iteration_is_full_is_surplus() -> None:
    b = on_policy()
    b.say("learner.1", LeaseRequest(1))
    episodes = full_with(b, 2, 4)
    assert b.core.state.leases[1].mints == (2, 4)
    assert b.core.state.fates == {Fate.SURPLUS: 2}
    assert b.core.state.charged == 2
    assert b.take("w0.1", Cancel) == [Cancel([episodes[1], episodes[3]])]
    assert b.told("fates")[-1]["counts"] == {"surplus": 2}
    b.finish("w0.1", episodes[1])  # it was on its way
    assert b.core.state.fates == {Fate.SURPLUS: 2}


def test_on_policy_nothing_is_minted_until_the_new_weights_are_published() -> None:
    b = on_policy()
    b.say("learner.1", LeaseRequest(1))
    full_with(b, 1, 2)
    b.supply()
    b.step(1)
    b.supply()
    assert b.core.state.minted == 4
    b.publish(2, 1, 1)
    b.supply()
    assert b.core.state.charged == 4
    assert b.core.state.minted == 8


def test_on_policy_an_unfinished_task_comes_first_in_the_next_iteration_twice_at_the_most() -> None:
    b = on_policy(partial_rollout=True)
    for number in (1, 2, 3):
        b.say("learner.1", LeaseRequest(number))
        b.supply()
        assert b.core.state.groups[min(b.core.state.unleased)].task.id == "0"
        newest = b.core.state.minted
        full_with(b, newest - 1, newest)
        b.step(number)
        b.publish(number + 1, number, number)
    b.supply()
    assert "0" not in {group.task.id for group in b.core.state.groups.values()}
    assert b.core.stats()["given_up_tasks"] == 2


def test_without_partial_rollout_an_unfinished_task_is_given_up() -> None:
    b = on_policy(partial_rollout=False)
    b.say("learner.1", LeaseRequest(1))
    full_with(b, 3, 4)
    assert b.core.minter.waiting_again == ()
    b.step(1)
    b.publish(2, 1, 1)
    b.supply()
    assert {group.task.id for group in b.core.state.groups.values() if not group.lease} == {
        *("4", "5", "6", "7")
    }


def test_a_surplus_group_that_was_ready_has_had_its_turn_and_its_tokens_are_counted() -> None:
    b = on_policy()
    full_with(b, 1, 2, 3)
    b.lease(1)
    assert b.core.state.fates == {Fate.SURPLUS: 2}
    assert b.core.minter.waiting_again == (4,)
    assert b.core.stats()["surplus_tokens"] == 4
    assert "surplus_tokens" not in bench().core.stats()


def test_the_last_iteration_is_over_sampled_too_and_the_run_ends() -> None:
    b = on_policy(num_rollout=1)
    b.say("learner.1", LeaseRequest(1))
    full_with(b, 1, 4)
    assert b.core.state.leases[1].last
    b.step(1)
    b.publish(2, 1, 1)
    b.supply()
    assert b.core.state.minted == 4
    b.say("learner.1", LeaseRequest(2))
    assert b.take("learner.1", NoMoreLeases)


def test_a_source_that_ends_is_played_to_its_end_over_the_surplus() -> None:
    b = on_policy()
    b.offer(4, exhausted=True)
    b.say("learner.1", LeaseRequest(1))
    episodes = playing(b)
    for mint in (1, 2):
        b.finish("w0.1", episodes[mint])
    b.judge_all("w0.1")
    assert not b.core.state.leases[1].last
    b.step(1)
    b.publish(2, 1, 1)
    b.say("learner.1", LeaseRequest(2))
    b.play_all("w0.1", versions=((2, 4),))
    assert b.core.state.leases[2].mints == (5, 6)
    assert b.core.state.leases[2].last


def test_a_judge_that_answers_for_a_surplus_group_changes_nothing() -> None:
    b = on_policy()
    b.supply()
    b.say("learner.1", LeaseRequest(1))
    for episode in playing(b).values():
        b.finish("w0.1", episode)
    orders = b.take("w0.1", ScoreGroup)
    for order in orders[:2]:
        b.say("w0.1", GroupScore(order.group, [1.0]))
    assert b.core.state.fates == {Fate.SURPLUS: 2}
    for order in orders[2:]:
        b.say("w0.1", GroupScore(order.group, [1.0]))
    assert b.core.state.fates == {Fate.SURPLUS: 2}
    assert b.core.stats()["judging"] == 0


def test_a_restarted_buffer_knows_which_surplus_tasks_come_again(tmp_path: Path) -> None:
    b = on_policy()
    full_with(b, 1, 2, 3)
    b.lease(1)
    settings = b.core.settings
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit(b.rows)
        assert BufferCore(settings, ledger.load()).minter.waiting_again == (4,)
        whole = msgspec.structs.replace(settings, partial_rollout=False)
        assert BufferCore(whole, ledger.load()).minter.waiting_again == ()
