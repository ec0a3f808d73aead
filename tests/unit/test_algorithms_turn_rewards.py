"""`--reward-level turn`: a token is credited with its turn and those after it, as GRPO with process
supervision (DeepSeekMath, arXiv 2402.03300, section 4.1.3) says; leave-one-out returns, and GAE
over rewards that come with turns."""

import random
from collections.abc import Iterator
from itertools import product
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.algorithms.base import credits_of
from agentrl.algorithms.load import check_algorithm, load_algorithm
from agentrl.algorithms.rows import first_turns, num_turns
from agentrl.algorithms.turn_rewards import at_last_actions, by_turn
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


@pytest.mark.parametrize("name", ["opob", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
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


def leave_one_out(group: list[list[float]]) -> list[list[float]]:
    """Of each turn: what was earned from it on, less the mean of what each other episode earned
    from the turn of that number on."""

    def earned_from(episode: int, turn: int) -> float:
        return sum(group[episode][turn:])

    return [
        [
            earned_from(own, turn)
            - fmean(earned_from(other, turn) for other in range(len(group)) if other != own)
            for turn in range(len(turns))
        ]
        for own, turns in enumerate(group)
    ]


def by_label(batch: Batch, steps: Any) -> Iterator[tuple[GroupRows, int, Any, papers.Seq]]:
    """Of each segment: its group, the place of its episode there, the turn that each label is of,
    counted through the segments of the episode (-1: of none), and what the papers see of it."""
    named = iter([seq for step in steps for _, seq in step])
    for group in batch.header.groups:
        for row, first in zip(group.trajectories, first_turns(group), strict=True):
            turns = np.append(batch.rows[row.payload.offset].turns_L[1:], -1)
            place = group.episodes.index(row.episode)
            yield group, place, np.where(turns >= 0, turns + first, -1), next(named)


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
        ("rloo", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [1, 2])
def test_value_and_gradient_are_those_of_compared_turns(
    name: str, flags: dict[str, Any], seed: int
) -> None:
    sizes: dict[str, Any] = {"num_steps_per_rollout": 2, "max_tokens_per_gpu": 160}
    cfg = RunConfig(advantage_estimator=name, max_staleness=BOUND, **TURNS, **sizes, **flags)
    batch, backend = Batch(seed), Watched(seed)
    made = with_turn_rewards(batch)
    train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)

    steps = [sequences(batch, backend, step) for step in range(2)]
    divides = "disable_grpo_std_normalization" not in flags
    for group, place, turns, seq in by_label(batch, steps):
        advantages = (
            leave_one_out(made[group.group])
            if name == "rloo"
            else process_supervision(made[group.group], divides=divides)
        )
        seq.advantage = np.array([advantages[place][turn] if turn >= 0 else 0.0 for turn in turns])
    for step, each in enumerate(steps):
        loss, slopes = papers.loss(name, [seq for _, seq in each], flags)
        assert backend.losses[step] == pytest.approx(loss, rel=1e-4, abs=1e-5)
        for (tokens, _), slope in zip(each, slopes, strict=True):
            found = backend.gradients[step].get(tokens, np.zeros(len(slope)))
            np.testing.assert_allclose(found, slope, rtol=2e-4, atol=1e-7)
    assert any(slope.any() for slope in slopes)


@pytest.mark.parametrize("flags", [{}, {"gamma": 0.9, "lambd": 0.8, "kl_coef": 0.05}], ids=str)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_critic_learns_from_rewards_at_the_last_tokens_of_turns(
    flags: dict[str, Any], seed: int
) -> None:
    sizes: dict[str, Any] = {"num_steps_per_rollout": 2, "max_tokens_per_gpu": 160}
    cfg = RunConfig(advantage_estimator="ppo", max_staleness=BOUND, **TURNS, **sizes, **flags)
    batch, backend = Batch(seed), Watched(seed)
    made = with_turn_rewards(batch)
    train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)

    steps = [sequences(batch, backend, step) for step in range(2)]
    for group, place, turns, seq in by_label(batch, steps):
        seq.earned = np.zeros(len(turns))
        for turn in {*turns[seq.sampled].tolist()}:
            last = np.flatnonzero((turns == turn) & seq.sampled)[-1]
            seq.earned[last] = made[group.group][place][turn]
    papers.advantages("ppo", [seq for each in steps for _, seq in each], flags)
    for step, each in enumerate(steps):
        _, slopes = papers.loss("ppo", [seq for _, seq in each], flags)
        _, values, _ = papers.value_loss([seq for _, seq in each], flags)
        for (tokens, _), slope, by_value in zip(each, slopes, values, strict=True):
            found = backend.gradients[step].get(tokens, np.zeros(len(slope)))
            np.testing.assert_allclose(found, slope, rtol=2e-4, atol=1e-7)
            np.testing.assert_allclose(
                backend.of_critic[step][2][tokens], by_value, rtol=2e-4, atol=1e-7
            )


def test_a_turn_without_a_token_has_its_reward_at_the_token_before() -> None:
    rewards, turns_N = (0.5, 0.25, 1.0, -1.0), np.array([1, 1, 3])
    assert at_last_actions(rewards, turns_N).tolist() == [0.5, 1.25, -1.0]
    assert at_last_actions(rewards, turns_N[:0]).tolist() == []


@pytest.mark.parametrize("name", ["rloo", "ppo"])
def test_a_run_of_turn_rewards_is_accepted(name: str) -> None:
    cfg = RunConfig(advantage_estimator=name, n_samples_per_prompt=4, **TURNS)
    check_algorithm(cfg, {"reward_level": "--reward-level turn"})
    assert load_algorithm(cfg).teaches(0.0)


#: Episodes of a small problem: which of three actions comes first, and of two, second. The first
#: action 0 ends it.
EPISODES = [(0,), *product((1, 2), (0, 1))]
EARNED = {(0,): 0.7, (1,): -0.4, (2,): 0.1, (1, 0): 1.0, (1, 1): -0.3, (2, 0): 0.2, (2, 1): 2.0}


def test_leave_one_out_by_turn_has_the_exact_gradient_in_the_mean() -> None:
    """Over all pairs of episodes, weighed by how probable they are; softmax policies."""
    source = np.random.default_rng(0)
    scores = {(): source.normal(size=3), (1,): source.normal(size=2), (2,): source.normal(size=2)}
    policy = {state: np.exp(each) / np.exp(each).sum() for state, each in scores.items()}
    algorithm = load_algorithm(RunConfig(advantage_estimator="rloo", **TURNS))

    def probability(episode: tuple[int, ...]) -> float:
        return float(np.prod([policy[episode[:t]][a] for t, a in enumerate(episode)]))

    def slopes(episode: tuple[int, ...], weights: Any) -> dict[tuple[int, ...], Any]:
        """Of the sum of the log-probabilities of its actions, weighed."""
        return {
            episode[:t]: weight * (np.eye(len(policy[episode[:t]]))[action] - policy[episode[:t]])
            for t, (action, weight) in enumerate(zip(episode, weights, strict=True))
        }

    wanted = {state: np.zeros_like(each) for state, each in policy.items()}
    found = {state: np.zeros_like(each) for state, each in policy.items()}
    for episode in EPISODES:
        reward = sum(EARNED[episode[: t + 1]] for t in range(len(episode)))
        for state, slope in slopes(episode, [reward] * len(episode)).items():
            wanted[state] += probability(episode) * slope
    for pair in product(EPISODES, repeat=2):
        turns = [tuple(EARNED[each[: t + 1]] for t in range(len(each))) for each in pair]
        group = group_of([len(each) for each in pair], [sum(each) for each in turns], turns)
        weight = float(np.prod([probability(each) for each in pair]))
        for episode, credit in zip(pair, algorithm.credit(group), strict=True):
            for state, slope in slopes(episode, credit.numbers).items():
                found[state] += weight * slope / len(pair)
    for state, slope in wanted.items():
        np.testing.assert_allclose(found[state], slope, rtol=1e-9, atol=1e-12)
