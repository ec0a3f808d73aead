"""The pacing rule and the bounds of minting, on numbers worked out by hand."""

import pytest

from agentrl.buffer.admission import Pacer, headroom
from agentrl.buffer.rows import PacingRow
from agentrl.buffer.settings import BufferSettings
from agentrl.errors import ConfigError
from agentrl.types import PermitStats


def settings(**changed: int) -> BufferSettings:
    return BufferSettings(
        address="ipc:///tmp/none",
        rollout_batch_size=changed.get("n", 32),
        async_buffer_size=changed.get("b", 4),
        max_staleness=changed.get("s", 4),
        update_weights_interval=changed.get("i", 1),
    )


def test_the_cap_starts_two_iterations_above_its_least_value() -> None:
    assert Pacer(settings(), None).row.cap == 3 * 32
    assert Pacer(settings(i=2, b=8, s=8), None).row.cap == 4 * 32
    assert Pacer(settings(b=1), None).row.cap == 2 * 32


def test_the_first_lease_changes_nothing() -> None:
    pacer = Pacer(settings(), None)
    pacer.leased(1, 1.0, 100.0, 100, now=0.0)
    assert pacer.row == PacingRow(cap=96.0, old_share=0.1)


def test_too_many_old_tokens_shrink_the_cap_by_up_to_three_percent() -> None:
    pacer = Pacer(settings(), PacingRow(cap=100.0, old_share=0.0))
    pacer.leased(1, 0.0, 0.0, 0, now=0.0)
    pacer.leased(2, 0.5, 0.0, 0, now=10.0)  # e = 0.05: d = -1
    assert pacer.row.cap == pytest.approx(99.0)
    pacer.leased(3, 1.0, 0.0, 0, now=20.0)  # e = 0.145: d = clip(-4.8) = -3
    assert pacer.row.cap == pytest.approx(99.0 * 0.97)


def test_a_starved_learner_beside_free_engines_grows_the_cap() -> None:
    pacer = Pacer(settings(), PacingRow(cap=100.0))
    pacer.leased(1, 0.0, 0.0, 0, now=0.0)
    pacer.permits(PermitStats(free_share=0.1, window_s=10.0))
    pacer.leased(2, 0.0, 1.0, 0, now=10.0)
    assert pacer.row.cap == pytest.approx(101.0)


@pytest.mark.parametrize(("wait", "free"), [(0.4, 0.1), (1.0, 0.04)])
def test_the_cap_stays_when_either_sign_of_starvation_is_missing(wait: float, free: float) -> None:
    pacer = Pacer(settings(), PacingRow(cap=100.0))
    pacer.leased(1, 0.0, 0.0, 0, now=0.0)
    pacer.permits(PermitStats(free_share=free, window_s=10.0))
    pacer.leased(2, 0.0, wait, 0, now=10.0)
    assert pacer.row.cap == 100.0


def test_a_lasting_surplus_of_ready_groups_shrinks_the_cap() -> None:
    pacer = Pacer(settings(), PacingRow(cap=100.0))
    pacer.leased(1, 0.0, 0.0, 0, now=0.0)
    pacer.leased(2, 0.0, 0.0, 16, now=10.0)
    assert pacer.row.cap == pytest.approx(99.0)
    pacer.leased(3, 0.0, 0.0, 15, now=20.0)
    assert pacer.row.cap == pytest.approx(99.0)


def test_the_cap_moves_once_in_a_publish_interval_and_sees_all_of_it() -> None:
    pacer = Pacer(settings(i=2), PacingRow(cap=100.0))
    pacer.leased(1, 0.0, 0.0, 0, now=0.0)
    pacer.leased(2, 0.0, 0.0, 20, now=10.0)
    assert pacer.row.cap == pytest.approx(99.0)
    pacer.leased(3, 0.0, 0.0, 2, now=20.0)
    pacer.leased(4, 0.0, 0.0, 20, now=30.0)
    assert pacer.row.cap == pytest.approx(99.0)  # the least number left was 2


def test_the_cap_never_leaves_its_range() -> None:
    pacer = Pacer(settings(), PacingRow(cap=33.0))
    for number in range(1, 50):
        pacer.leased(number, 1.0, 0.0, 0, now=10.0 * number)
    assert pacer.row.cap == 32.0
    for number in range(50, 500):
        pacer.permits(PermitStats(free_share=1.0, window_s=10.0))
        pacer.leased(number, 0.0, 10.0, 0, now=10.0 * number)
    assert pacer.row.cap == 5 * 32


def test_without_room_ahead_the_cap_is_one_interval_for_good() -> None:
    pacer = Pacer(settings(b=0, s=0, i=4), None)
    assert pacer.cap == 4 * 32


@pytest.mark.parametrize("b", range(4))
@pytest.mark.parametrize("s", range(4))
@pytest.mark.parametrize("i", range(1, 4))
def test_every_combination_leaves_a_batch_for_each_iteration_before_a_push(
    b: int, s: int, i: int
) -> None:
    run = settings(b=b, s=s, i=i, n=4)
    least = Pacer(run, PacingRow(cap=0.0)).cap
    for stepped in range(i):
        room = headroom(
            run, charged=stepped * 4, unleased=0, leases=stepped, cap=least, store_bytes=0
        )
        assert room >= 4


def test_a_group_size_that_can_never_be_reached_is_refused() -> None:
    with pytest.raises(ConfigError, match="min-group-size 3"):
        BufferSettings(address="a", rollout_batch_size=1, n_samples_per_prompt=2, min_group_size=3)
