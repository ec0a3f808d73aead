"""Over-sampling: what is in the making for the next lease, what a filter takes, and the surplus."""

import pytest

from agentrl.buffer.admission import Pacer
from agentrl.buffer.rows import PacingRow
from agentrl.buffer.settings import BufferSettings
from agentrl.errors import ConfigError
from agentrl.types import Fate
from agentrl.wire.messages import Judge, LeaseRequest, Verdict
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
    for order in b.take("w0.1", Judge):
        b.say("w0.1", Verdict(order.group, [0.0], int(order.group) in keep, "dull"))


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
