"""Penalties for length and the filter of what was cut off: edges, damage, and what is told."""

from typing import Any

import msgspec
import pytest

from agentrl.algorithms.base import Algorithm, credits_of
from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.overlong import overlong_metrics, penalties, shaped
from agentrl.algorithms.rows import Credit
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.learner.plan import plan_iteration
from agentrl.types import (
    EpisodeId,
    GroupRows,
    LeaseHeader,
    PayloadRef,
    StopReason,
    TrajectoryMeta,
    TrajectoryRow,
)

LENGTHS: dict[str, Any] = {"overlong_max_length": 100, "overlong_buffer_length": 20}
DONE, CUT, LONG = StopReason.TERMINATED, StopReason.RESPONSE_LIMIT, StopReason.CONTEXT_LIMIT
LATE = StopReason.TURN_LIMIT


def row(episode: EpisodeId, num_sampled: int, segment: int = 0) -> TrajectoryRow:
    meta = TrajectoryMeta(
        num_tokens=num_sampled + 2,
        num_sampled=num_sampled,
        num_turns=1,
        reward=0.0,
        versions=[(0, num_sampled)],
        segment=segment,
    )
    return TrajectoryRow(episode, meta, PayloadRef("s", 0, 0, 100, 0))


def group_of(
    lengths: list[list[int]], rewards: list[float], ends: list[StopReason] | None = None
) -> GroupRows:
    """lengths[e]: the sampled tokens of each segment of episode e."""
    ids = [EpisodeId("g", index) for index in range(len(lengths))]
    rows = [
        row(id, num, segment)
        for id, segments in zip(ids, lengths, strict=True)
        for segment, num in enumerate(segments)
    ]
    stops = [DONE] * len(ids) if ends is None else ends
    return GroupRows("g", 1, "t", ids, rewards, [{} for _ in ids], rows, stops)


@pytest.mark.parametrize(
    ("lengths", "lost"),
    [
        ([0], 0.0),
        ([80], 0.0),
        ([81], 0.05),
        ([90], 0.5),
        ([40, 50], 0.5),
        ([100], 1.0),
        ([1000], 1.0),
        ([], 0.0),
    ],
)
def test_a_penalty_grows_over_the_buffer_and_no_further(lengths: list[int], lost: float) -> None:
    group = group_of([lengths], [1.0])
    assert penalties(RunConfig(**LENGTHS), group) == pytest.approx([lost])
    assert shaped(RunConfig(**LENGTHS), group).rewards == pytest.approx([1.0 - lost])
    twice = RunConfig(**LENGTHS, overlong_penalty_factor=2.0)
    assert penalties(twice, group) == pytest.approx([2 * lost])


def test_without_the_flags_a_group_stays_as_it_is() -> None:
    group = group_of([[1000], [1]], [1.0, 0.0], [LONG, DONE])
    assert shaped(RunConfig(), group) is group
    assert overlong_metrics(RunConfig(), LeaseHeader(1, [group])) == {}


def test_credit_meets_the_penalty_once_however_often_it_is_asked() -> None:
    cfg = RunConfig(**LENGTHS, disable_rewards_normalization=True)
    group = group_of([[10], [90]], [1.0, 1.0])
    for _ in range(3):
        assert credits_of(load_algorithm(cfg), group) == [Credit(1.0), Credit(0.5)]
    assert group.rewards == [1.0, 1.0]


def test_a_group_of_equal_rewards_and_unequal_lengths_teaches() -> None:
    group = group_of([[10], [90]], [1.0, 1.0])
    short, long = credits_of(load_algorithm(RunConfig(**LENGTHS)), group)
    assert isinstance(short.value, float)
    assert short.value > 0 > long.value  # type: ignore[operator]


@pytest.mark.parametrize(
    ("end", "is_cut"), [(DONE, False), (CUT, True), (LONG, True), (LATE, False)]
)
def test_only_a_limit_on_tokens_filters(end: StopReason, is_cut: bool) -> None:
    cfg = RunConfig(overlong_filter=True)
    group = group_of([[10], [10]], [0.0, 1.0], [DONE, end])
    plain = credits_of(load_algorithm(RunConfig()), group)
    first, second = credits_of(load_algorithm(cfg), group)
    assert first == plain[0]
    assert second == (Credit(0.0, skip=True) if is_cut else plain[1])
    metrics = overlong_metrics(cfg, LeaseHeader(1, [group, group]))
    assert metrics == {"rollout/num_overlong_filtered": 2 * is_cut}


def test_what_is_filtered_is_in_the_denominator_and_in_no_shard() -> None:
    group = group_of([[10], [30]], [0.0, 1.0], [DONE, LONG])
    cfg = RunConfig(overlong_filter=True, calculate_per_token_loss=True)
    (step,) = plan_iteration(LeaseHeader(1, [group]), load_algorithm(cfg), 1)
    (planned,) = step.shards[0]
    assert planned.row.episode == EpisodeId("g", 0)
    assert planned.weight == 1 / 40


def test_a_group_that_is_cut_off_as_a_whole_trains_nothing() -> None:
    group = group_of([[10], [30]], [0.0, 1.0], [CUT, LONG])
    (step,) = plan_iteration(
        LeaseHeader(1, [group]), load_algorithm(RunConfig(overlong_filter=True)), 2
    )
    assert step.shards == ((), ())


def test_the_metrics_say_what_length_took() -> None:
    header = LeaseHeader(
        1, [group_of([[90], [10]], [1.0, 1.0]), group_of([[100], [10]], [1.0, 0.0])]
    )
    found = overlong_metrics(RunConfig(**LENGTHS), header)
    assert found == pytest.approx({"rollout/overlong_penalty": 1.5 / 4})
    assert overlong_metrics(RunConfig(**LENGTHS, overlong_filter=True), LeaseHeader(1, [])) == {
        "rollout/num_overlong_filtered": 0
    }


def test_a_header_without_stop_reasons_is_damaged_where_they_are_asked_for() -> None:
    group = msgspec.structs.replace(group_of([[10]], [1.0]), stop_reasons=[])
    assert credits_of(load_algorithm(RunConfig()), group)
    with pytest.raises(
        DataError, match="1 episodes and 0 stop reasons: the lease header is damaged"
    ):
        credits_of(load_algorithm(RunConfig(overlong_filter=True)), group)


def test_an_algorithm_of_the_users_is_given_shaped_rewards_wherever_it_looks() -> None:
    seen: list[list[float]] = []

    class Seen(Algorithm):
        """Notes rewards."""

        def begin(self, header: LeaseHeader) -> None:
            seen.extend(group.rewards for group in header.groups)

        def values(self, rewards: Any) -> Any:
            seen.append(list(rewards))
            return rewards

    from agentrl.learner.iteration import train_lease
    from tests.parity.golden import Batch, TableBackend, lineage

    cfg = RunConfig(overlong_max_length=30, overlong_buffer_length=20, max_staleness=8)
    batch = Batch(1)
    train_lease(batch.header, Seen(cfg, None), TableBackend(1), lineage(), batch.fetch)
    num = len(batch.header.groups)
    assert seen[:num] == seen[num : 2 * num]
    assert seen[:num] != [group.rewards for group in batch.header.groups]
