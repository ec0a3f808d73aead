"""A group of n of which k failed trains with the n - k that were done (`--min-group-size`): in
expectation over which of them fail it teaches what a group of n - k draws teaches. Counted: every
draw of a policy over three answers, and every set of episodes that may fail."""

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.learner.plan import plan_iteration
from agentrl.types import (
    EpisodeId,
    GroupRows,
    LeaseHeader,
    PayloadRef,
    TrajectoryMeta,
    TrajectoryRow,
)

SCORES = np.array([0.3, -0.5, 0.1])
CHANCES = np.exp(SCORES) / np.exp(SCORES).sum()
REWARDS = (0.0, 1.0, 0.25)
NUM, NUM_FAILED = 4, 1
TOKEN = TrajectoryMeta(num_tokens=3, num_sampled=1, num_turns=1, reward=0.0, versions=[(0, 1)])
Gradient = npt.NDArray[np.float64]


def gradient(draws: Sequence[int], done: Sequence[int], cfg: RunConfig) -> Gradient:
    """What a lease of the episodes that were done, of one token each, teaches the scores."""
    ids = [EpisodeId("g", index) for index in done]
    rewards = [REWARDS[draws[i]] for i in done]
    rows = [TrajectoryRow(each, TOKEN, PayloadRef("s", 0, 0, 100, 0)) for each in ids]
    group = GroupRows("g", 1, "t", ids, rewards, [{} for _ in ids], rows)
    found = np.zeros(len(SCORES))
    for step in plan_iteration(LeaseHeader(1, [group]), load_algorithm(cfg), 1):
        for planned in step.shards[0]:
            score = np.eye(len(SCORES))[draws[planned.row.episode.index]] - CHANCES
            found += planned.weight * float(np.mean(planned.credit.numbers)) * score
    return found


def expected(num: int, failures: Sequence[Sequence[int]], cfg: RunConfig) -> Gradient:
    """Over all draws, and over these sets of failures, of which each is as likely."""

    def terms() -> Iterator[Gradient]:
        for draws in product(range(len(SCORES)), repeat=num):
            chance = float(np.prod(CHANCES[list(draws)])) / len(failures)
            for failed in failures:
                done = [index for index in range(num) if index not in failed]
                yield chance * gradient(draws, done, cfg)

    total: Gradient = np.sum(list(terms()), axis=0)
    return total


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"disable_grpo_std_normalization": True},
        {"disable_rewards_normalization": True},
        {"advantage_estimator": "rloo"},
        {"loss_length": 4},
        {"calculate_per_token_loss": True},
        {"reward_level": "turn"},
    ],
    ids=str,
)
def test_failures_leave_what_a_smaller_group_would_have_taught(flags: dict[str, Any]) -> None:
    cfg = RunConfig(n_samples_per_prompt=NUM, min_group_size=NUM - NUM_FAILED, **flags)
    failures = list(combinations(range(NUM), NUM_FAILED))
    found, smaller = expected(NUM, failures, cfg), expected(NUM - NUM_FAILED, [()], cfg)
    np.testing.assert_allclose(found, smaller, rtol=1e-12)
    assert np.abs(found).max() > 0.01


def test_an_unbiased_estimator_stays_so_whoever_fails() -> None:
    """The gradient of the expected reward, whatever fails, as long as that tells nothing of it."""
    exact = CHANCES * (np.array(REWARDS) - CHANCES @ np.array(REWARDS))
    cfg = RunConfig(
        advantage_estimator="rloo", n_samples_per_prompt=NUM, min_group_size=NUM - NUM_FAILED
    )
    for failed in combinations(range(NUM), NUM_FAILED):
        np.testing.assert_allclose(expected(NUM, [failed], cfg), exact, rtol=1e-12)
