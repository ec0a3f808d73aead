"""`--reward-level turn`: a token is credited with its turn and those after it, as GRPO with process
supervision (DeepSeekMath, arXiv 2402.03300, section 4.1.3) says."""

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.algorithms.base import credits_of
from agentrl.algorithms.load import check_algorithm, load_algorithm
from agentrl.algorithms.rows import first_turns, num_turns
from agentrl.algorithms.turn_rewards import by_turn
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError
from agentrl.learner.iteration import train_lease
from agentrl.types import (
    EpisodeFacts,
    EpisodeId,
    GroupRows,
    LeaseHeader,
    PayloadRef,
    TrajectoryMeta,
    TrajectoryRow,
)
from tests.parity import papers
from tests.parity.golden import Batch, lineage
from tests.parity.test_estimators import BOUND, Watched, sequences

TURNS: dict[str, Any] = {"reward_level": "turn"}


def group_of(turns: list[int], rewards: list[float], given: list[tuple[float, ...]]) -> GroupRows:
    """Episodes of so many turns of one token each."""
    ids = [EpisodeId("g", index) for index in range(len(turns))]
    rows = [
        TrajectoryRow(
            id,
            TrajectoryMeta(2 * num, num, num, 0.0, [(0, num)]),
            PayloadRef("s", 0, 0, 100, 0),
        )
        for id, num in zip(ids, turns, strict=True)
    ]
    facts = [EpisodeFacts(turn_rewards=each) for each in given]
    return GroupRows("g", 1, "t", ids, rewards, [{} for _ in ids], rows, facts=facts)


def test_turns_have_what_they_earned_and_the_last_one_the_rest() -> None:
    group = group_of([3, 2, 1, 3], [1.0, 2.0, -1.0, 0.5], [(0.5, 0.0, 0.5), (), (), (0.5,)])
    assert by_turn(group) == [[0.5, 0.0, 0.5], [0.0, 2.0], [-1.0], [0.5, 0.0, 0.0]]
    without = msgspec.structs.replace(group, facts=[])
    assert by_turn(without) == [[0.0, 0.0, 1.0], [0.0, 2.0], [-1.0], [0.0, 0.0, 0.5]]


def test_a_judge_and_a_penalty_for_length_change_the_last_turn() -> None:
    group = group_of([3, 1], [1.0, 0.0], [(0.5, 0.25, 0.0), ()])
    assert by_turn(group)[0] == [0.5, 0.25, 0.25]
    cfg = RunConfig(
        **TURNS, disable_rewards_normalization=True, overlong_max_length=3, overlong_buffer_length=1
    )
    long, short = credits_of(load_algorithm(cfg), group)
    assert (long.value, short.value) == ((0.0, -0.5, -0.75), (0.0,))


def test_equal_turns_have_no_gradient() -> None:
    group = group_of([2, 2], [1.0, 1.0], [(0.5, 0.5)] * 2)
    credits = credits_of(load_algorithm(RunConfig(**TURNS)), group)
    assert all(credit.skip and not any(credit.value) for credit in credits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            [(1.0, 1.0, 1.0), ()],
            "an episode of 2 turns has 3 turn rewards: the lease header is dam",
        ),
        ([()], "2 episodes and facts of 1: the lease header is damaged"),
    ],
)
def test_a_damaged_header_is_named(given: list[tuple[float, ...]], said: str) -> None:
    group = msgspec.structs.replace(
        group_of([2, 1], [1.0, 0.0], [(), ()]),
        facts=[EpisodeFacts(turn_rewards=each) for each in given],
    )
    with pytest.raises(DataError, match=said):
        credits_of(load_algorithm(RunConfig(**TURNS)), group)


@pytest.mark.parametrize("name", ["rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_an_estimator_that_knows_of_no_turns_is_refused(name: str) -> None:
    cfg = RunConfig(
        advantage_estimator=name, n_samples_per_prompt=4, normalize_advantages=True, **TURNS
    )
    with pytest.raises(
        ConfigError, match=f"--reward-level turn: --advantage-estimator {name} does"
    ):
        check_algorithm(cfg, {"reward_level": "--reward-level turn"})


def process_supervision(group: list[list[float]], *, divides: bool) -> list[list[float]]:
    """Of each turn: the sum of the normalized rewards of the turns from it on."""
    every = np.array([reward for turns in group for reward in turns])
    scale = np.std(every, ddof=1) + 1e-6 if divides else 1.0
    return [
        [
            sum((reward - every.mean()) / scale for reward in turns[turn:])
            for turn in range(len(turns))
        ]
        for turns in group
    ]


def with_turn_rewards(batch: Batch) -> dict[str, list[list[float]]]:
    """Give the lease's episodes rewards by turn; returns them by group."""
    made: dict[str, list[list[float]]] = {}
    source, groups = random.Random(3), []
    for group in batch.header.groups:
        turns = [[round(source.uniform(-1, 1), 3) for _ in range(n)] for n in num_turns(group)]
        made[group.group] = turns
        facts = [EpisodeFacts(turn_rewards=tuple(each)) for each in turns]
        rewards = [sum(each) for each in turns]
        groups.append(msgspec.structs.replace(group, rewards=rewards, facts=facts))
    batch.header = LeaseHeader(number=batch.header.number, groups=groups)
    return made


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("grpo", {}),
        ("grpo", {"disable_grpo_std_normalization": True, "loss_length": 40}),
        ("gspo", {"eps_clip": 0.5}),
        ("cispo", {"calculate_per_token_loss": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [1, 2])
def test_value_and_gradient_are_those_of_process_supervision(
    name: str, flags: dict[str, Any], seed: int
) -> None:
    sizes: dict[str, Any] = {"num_steps_per_rollout": 2, "max_tokens_per_gpu": 160}
    cfg = RunConfig(advantage_estimator=name, max_staleness=BOUND, **TURNS, **sizes, **flags)
    batch, backend = Batch(seed), Watched(seed)
    made = with_turn_rewards(batch)
    train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)

    steps = [sequences(batch, backend, step) for step in range(2)]
    named = iter([seq for step in steps for _, seq in step])
    divides = "disable_grpo_std_normalization" not in flags
    for group in batch.header.groups:
        advantages = process_supervision(made[group.group], divides=divides)
        for row, first in zip(group.trajectories, first_turns(group), strict=True):
            seq, place = next(named), group.episodes.index(row.episode)
            turns = np.append(batch.rows[row.payload.offset].turns_L[1:], -1)
            seq.advantage = np.array(
                [advantages[place][turn + first] if turn >= 0 else 0.0 for turn in turns]
            )
    for step, each in enumerate(steps):
        loss, slopes = papers.loss(name, [seq for _, seq in each], flags)
        assert backend.losses[step] == pytest.approx(loss, rel=1e-4, abs=1e-5)
        for (tokens, _), slope in zip(each, slopes, strict=True):
            found = backend.gradients[step].get(tokens, np.zeros(len(slope)))
            np.testing.assert_allclose(found, slope, rtol=2e-4, atol=1e-7)
    assert any(slope.any() for slope in slopes)
