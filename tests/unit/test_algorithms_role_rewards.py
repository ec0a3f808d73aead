"""`--reward-level role`: the conversations of a role are compared with each other alone, over all
episodes of a group."""

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.algorithms.base import Algorithm, credits_of
from agentrl.algorithms.load import check_algorithm, load_algorithm
from agentrl.algorithms.rows import Credit
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError
from agentrl.learner.algorithm_trial import trial_here
from agentrl.learner.iteration import train_lease
from agentrl.learner.metrics import lease_metrics
from agentrl.learner.plan import plan_iteration
from agentrl.roles import role_of
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

ROLES: dict[str, Any] = {"reward_level": "role"}
#: An episode: what each name of the policy earned.
Earned = dict[str, float]


def group_of(
    episodes: list[Earned], own: list[float | None], judged: list[float] | None = None
) -> GroupRows:
    """Episodes with a trajectory of one token for each name."""
    ids = [EpisodeId("g", index) for index in range(len(episodes))]
    rows = [
        TrajectoryRow(
            id,
            TrajectoryMeta(2, 1, 1, reward, [(0, 1)], role=name, segment=segment),
            PayloadRef("s", 0, 0, 40, 0),
        )
        for id, earned in zip(ids, episodes, strict=True)
        for segment, (name, reward) in enumerate(earned.items())
    ]
    facts = [EpisodeFacts(env_reward=each) for each in own]
    rewards = judged or [each or 0.0 for each in own]
    return GroupRows("g", 1, "t", ids, rewards, [{} for _ in ids], rows, facts=facts)


def values_of(group: GroupRows, **flags: Any) -> list[Any]:
    algorithm = load_algorithm(RunConfig(**(ROLES | flags)))
    return [credit.value for credit in credits_of(algorithm, group)]


THREE: list[Earned] = [
    {"solver#0": 1.0, "solver#1": 0.0, "selector": 1.0},
    {"solver#0": 0.0, "selector": 0.0},
    {"solver#0": 1.0, "solver#1": 1.0, "solver#2": 0.5, "selector": 0.25},
]


@pytest.mark.parametrize("divides", [True, False])
def test_like_is_compared_with_like_however_many_there_are(divides: bool) -> None:
    group = group_of(THREE, [0.5, 0.0, 0.7])
    found = values_of(group, disable_grpo_std_normalization=not divides)
    for role in ("solver", "selector"):
        names = [(at, name) for at, each in enumerate(THREE) for name in each if role in name]
        rewards = np.array([THREE[at][name] for at, name in names])
        scale = np.std(rewards, ddof=1) + 1e-6 if divides else 1.0
        wanted = (rewards - rewards.mean()) / scale
        assert [found[at][name] for at, name in names] == pytest.approx(wanted.tolist())
    assert [each.keys() for each in found] == [each.keys() for each in THREE]


def test_the_names_of_a_role_end_with_a_number_or_whatever_its_author_says() -> None:
    assert [role_of(name) for name in ("solver", "solver#1", "solver#a#b", "#1")] == [
        "solver",
        "solver",
        "solver",
        "#1",
    ]


def test_a_conversation_counts_once_however_often_its_history_was_rewritten() -> None:
    group = group_of([{"policy": 1.0}, {"policy": 0.0}, {"policy": 0.0}], [None] * 3, [1.0, 0, 0])
    again = msgspec.structs.replace(group.trajectories[0].meta, segment=1)
    rows = [*group.trajectories, msgspec.structs.replace(group.trajectories[0], meta=again)]
    rewritten = msgspec.structs.replace(group, trajectories=rows)
    by_episode = values_of(group, reward_level="episode")
    assert [value["policy"] for value in values_of(rewritten)] == by_episode


def test_episodes_without_rewards_of_roles_give_each_role_that_of_the_episode() -> None:
    group = group_of([{"a": 0.1, "b": 0.1}, {"a": 0.3, "b": 0.3}], [None, None], [0.1, 0.3])
    first, second = values_of(group, disable_grpo_std_normalization=True)
    by_episode = values_of(group, disable_grpo_std_normalization=True, reward_level="episode")
    assert [first, second] == [{"a": value, "b": value} for value in by_episode]


def test_what_a_judge_gives_to_an_episode_each_of_its_roles_gets() -> None:
    episodes: list[Earned] = [{"a": 1.0, "b": 0.25}, {"a": 0.0, "b": 0.25}]
    group = group_of(episodes, [0.5, 0.25], judged=[1.5, 0.0])
    found = values_of(group, disable_rewards_normalization=True)
    assert found == [{"a": 2.0, "b": 1.25}, {"a": -0.25, "b": 0.0}]


def test_a_penalty_for_length_is_taken_from_each_role() -> None:
    group = group_of([{"a": 1.0, "b": 0.5}, {"a": 1.0}], [0.5, None], judged=[0.5, 1.0])
    shaped = values_of(
        group, disable_rewards_normalization=True, overlong_max_length=2, overlong_buffer_length=1
    )
    assert shaped == [{"a": 0.0, "b": -0.5}, {"a": 1.0}]


def test_equal_episodes_of_unlike_roles_teach() -> None:
    group = group_of([{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 0.0}], [0.5, 0.5])
    algorithm = load_algorithm(RunConfig(**ROLES))
    assert algorithm.teaches(0.5)
    assert not load_algorithm(RunConfig()).teaches(0.5)
    (step,) = plan_iteration(LeaseHeader(number=1, groups=[group]), algorithm, 1)
    # b earned alike everywhere: it is counted and not computed
    assert [item.row.meta.role for item in step.shards[0]] == ["a", "a"]
    assert step.num_targets == 4
    assert [item.credit.value for item in step.shards[0]] == pytest.approx(
        [2**-0.5, -(2**-0.5)], rel=1e-5
    )


def test_a_group_whose_roles_differ_is_no_episodes_alone() -> None:
    header = LeaseHeader(number=1, groups=[group_of([{"a": 1.0}, {"a": 0.0}], [0.5, 0.5])])
    with pytest.raises(DataError, match=r"g: its roles have .* --reward-level role, under which"):
        plan_iteration(header, load_algorithm(RunConfig()), 1)


def test_a_damaged_header_is_named() -> None:
    group = msgspec.structs.replace(group_of([{"a": 1.0}, {"a": 0.0}], [0.5, 0.5]), facts=[])
    group = msgspec.structs.replace(group, facts=[EpisodeFacts()])
    with pytest.raises(DataError, match="2 episodes and facts of 1: the lease header is damaged"):
        values_of(group)


# ---- estimators ----------------------------------------------------------------------------------


def test_roles_of_any_estimator_that_compares_rewards() -> None:
    found = values_of(group_of(THREE, [0.5, 0.0, 0.7]), advantage_estimator="rloo")
    solvers = [1.0, 0.0, 0.0, 1.0, 1.0, 0.5]
    wanted = [each - (sum(solvers) - each) / 5 for each in solvers]
    named = [value for each in found for name, value in each.items() if name != "selector"]
    assert named == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "level"),
    [("opob", "role"), ("opob", "turn"), ("reinforce_plus_plus_baseline", "turn")],
)
def test_an_estimator_that_does_not_know_a_level_is_refused(name: str, level: Any) -> None:
    cfg = RunConfig(
        advantage_estimator=name,
        reward_level=level,
        n_samples_per_prompt=4,
        normalize_advantages=True,
    )
    with pytest.raises(
        ConfigError,
        match=rf"--reward-level {level}: --advantage-estimator {name} does not know of {level}s "
        r"\(its reward_levels: episode",
    ):
        check_algorithm(cfg)


MINE = """
from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.rows import Credit


class Mine(Algorithm):
    {}
"""
VALUES = "def values(self, rewards): return [reward - max(rewards) for reward in rewards]"
CREDIT = "def credit(self, group): return [Credit(reward) for reward in group.rewards]"
SAYS = f'reward_levels = frozenset({{"turn"}})\n    {CREDIT}'


@pytest.mark.parametrize(
    ("body", "level", "known"),
    [
        (VALUES, "role", None),
        (VALUES, "turn", "episode, role"),
        (CREDIT, "role", "episode"),
        (CREDIT, "turn", "episode"),
        (SAYS, "turn", None),
    ],
)
@pytest.mark.parametrize("loss", [False, True])
def test_a_class_of_ones_own_knows_the_levels_that_its_credit_is_made_for(
    body: str, level: Any, known: str | None, loss: bool, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MINE.format(body))
    flags: dict[str, Any] = {}
    if loss:
        head = "def loss(micro_batch, logprobs_T, entropy_T):"
        (tmp_path / "loss.py").write_text(
            f"{head}\n    one = (logprobs_T * micro_batch.columns['weights'])"
            "[micro_batch.columns['mask']].sum()\n    return one, {'loss': one.detach()}\n"
        )
        place = f"{tmp_path}/loss.py:loss"
        flags = {"loss_type": "custom_loss", "custom_loss_function_path": place}
    estimator = f"{tmp_path}/mine.py:Mine"
    cfg = RunConfig(advantage_estimator=estimator, reward_level=level, **flags)
    said = {"reward_level": f"--reward-level {level}"}
    if known is None:
        trial_here(cfg, said)
        return
    refusal = rf"does not know of {level}s \(its reward_levels: {known}\)"
    with pytest.raises(ConfigError, match=refusal):
        trial_here(cfg, said)


class Short(Algorithm):
    """Gives a role fewer values than it has rewards, or one of its names no credit."""

    def values(self, rewards: Any) -> Any:
        return rewards[1:]


class Nameless(Algorithm):
    reward_levels = frozenset({"role"})

    def credit(self, group: GroupRows) -> Any:
        return [Credit({"a": 1.0}) for _ in group.episodes]


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (Short, "there are 1 values for the 2 rewards of role a"),
        (Nameless, r"credit is given to \['a'\] and not to 'b', which played"),
    ],
)
def test_an_algorithm_that_leaves_one_out_is_told(cls: type[Algorithm], said: str) -> None:
    group = group_of([{"a": 1.0, "b": 0.5}, {"a": 0.5, "b": 1.0}], [0.5, 0.5])
    with pytest.raises(DataError, match=said):
        plan_iteration(LeaseHeader(number=1, groups=[group]), cls(RunConfig(**ROLES), None), 1)


# ---- value and gradient --------------------------------------------------------------------------


def with_roles(batch: Batch) -> dict[EpisodeId, Earned]:
    """Make conversations of a lease's segments, of two roles; returns what each earned."""
    made: dict[EpisodeId, Earned] = {}
    source, groups = random.Random(5), []
    for group in batch.header.groups:
        rows = []
        for row in group.trajectories:
            earned = made.setdefault(row.episode, {})
            name = f"{source.choice(['solver', 'judge'])}#{row.meta.segment}"
            earned[name] = round(source.uniform(-1, 1), 3)
            meta = msgspec.structs.replace(row.meta, role=name, reward=earned[name])
            rows.append(msgspec.structs.replace(row, meta=meta))
        facts = [EpisodeFacts(env_reward=reward) for reward in group.rewards]
        groups.append(msgspec.structs.replace(group, trajectories=rows, facts=facts))
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
def test_value_and_gradient_are_those_of_each_role_by_itself(
    name: str, flags: dict[str, Any], seed: int
) -> None:
    sizes: dict[str, Any] = {"num_steps_per_rollout": 2, "max_tokens_per_gpu": 160}
    cfg = RunConfig(advantage_estimator=name, max_staleness=BOUND, **ROLES, **sizes, **flags)
    batch, backend = Batch(seed), Watched(seed)
    made = with_roles(batch)
    train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)

    steps = [sequences(batch, backend, step) for step in range(2)]
    named = iter([seq for step in steps for _, seq in step])
    divides = "disable_grpo_std_normalization" not in flags
    for group in batch.header.groups:
        for row in group.trajectories:
            role = role_of(row.meta.role)
            rewards = np.array(
                [
                    reward
                    for episode in group.episodes
                    for other, reward in made[episode].items()
                    if role_of(other) == role
                ]
            )
            spread = np.std(rewards, ddof=1) if len(rewards) > 1 else 0.0
            own = made[row.episode][row.meta.role] - rewards.mean() if spread else 0.0
            seq = next(named)
            seq.advantage = np.full(len(seq.mask), own / (spread + 1e-6 if divides else 1.0))
    for step, each in enumerate(steps):
        loss, slopes = papers.loss(name, [seq for _, seq in each], flags)
        assert backend.losses[step] == pytest.approx(loss, rel=1e-4, abs=1e-5)
        for (tokens, _), slope in zip(each, slopes, strict=True):
            found = backend.gradients[step].get(tokens, np.zeros(len(slope)))
            np.testing.assert_allclose(found, slope, rtol=2e-4, atol=1e-7)
    assert any(slope.any() for slope in slopes)


# ---- what is reported ----------------------------------------------------------------------------


def test_the_mean_reward_of_a_role_is_a_metric_where_there_are_roles() -> None:
    group = group_of([*THREE[:2], {"a/b": 0.5}], [0.5, 0.0, 0.25], judged=[1.5, 0.0, 0.25])
    found = lease_metrics(LeaseHeader(number=1, groups=[group]), [0])
    roles = {name: value for name, value in found.items() if "/role/" in name}
    assert roles == {
        "rollout/role/solver/reward_mean": pytest.approx((2.0 + 1.0 + 0.0) / 3),
        "rollout/role/selector/reward_mean": 1.0,
        "rollout/role/a_b/reward_mean": 0.5,
    }
    alike = group_of([{"a": 0.5}, {"b": 0.5}], [None, None])
    found = lease_metrics(LeaseHeader(1, [alike]), [0])  # a curve has no gaps
    assert {name.split("/")[2] for name in found if "/role/" in name} == {"a", "b"}
    alone = group_of([{"policy": 0.5}, {"policy": 1.0}], [None, None])
    assert not any("/role/" in name for name in lease_metrics(LeaseHeader(1, [alone]), [0]))


def test_roles_that_are_shown_alike_are_one_and_few_are_shown() -> None:
    def shown(episodes: list[dict[str, float]]) -> dict[str, float]:
        group = group_of(episodes, [0.0] * len(episodes))
        found = lease_metrics(LeaseHeader(number=1, groups=[group]), [0])
        return {name.split("/")[2]: value for name, value in found.items() if "/role/" in name}

    assert shown([{"a/b": 1.0, "a_b": 0.0}, {"a_b": 0.5}]) == {"a_b": 0.5}
    many = {f"r{number:02}": float(number) for number in range(34)}
    found = shown([many, {"r33": 33.0}])
    assert {*found} == {"r33", *(f"r{number:02}" for number in range(31)), "others"}
    assert (found["r33"], found["others"]) == (33.0, 31.5)
