"""The learner's loop: what it trains on, what it tells the buffer, and what it measures."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.learner.backend import StepResult
from agentrl.learner.collective_request import LearnerPeer
from agentrl.learner.loop import LearnerOutcome
from agentrl.types import VersionRow
from agentrl.wire.blocking import BlockingPeer
from agentrl.wire.messages import AnnounceVersion, Message, PushDone, Retire, Stepped
from tests.collectives import Threads
from tests.estimators import ESTIMATORS, flags_of
from tests.integration.learner_world import GOAL, World, learn
from tests.integration.toy_backend import VOCABULARY, ToyBackend


def accepts(peer: BlockingPeer) -> LearnerPeer:
    """mypy checks here that the real connection fits the loop."""
    return peer


def goal_probability(world: World, version: int) -> float:
    return float(torch.softmax(world.tables[version], -1)[[1, 2, GOAL], GOAL].mean())


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"num_steps_per_rollout": 2},
        {"update_weights_interval": 2},
        {"calculate_per_token_loss": True},
    ],
    ids=str,
)
def test_training_makes_the_rewarded_token_more_likely(flags: dict[str, Any]) -> None:
    world = World([8] * 20)
    outcome, _ = learn(world, **flags)
    assert goal_probability(world, 0) == pytest.approx(1 / VOCABULARY)
    assert goal_probability(world, outcome.version) > 0.8
    rewards = [step.metrics["rollout/reward_mean"] for step in world.of(Stepped)]
    assert rewards[-1] > rewards[0] + 0.5


class Sizes(ToyBackend):
    """Notes how many tokens each micro-batch of a step has, and how many sequences."""

    def __init__(self, group: Threads, rank: int, lr: float = 10.0) -> None:
        super().__init__(group, rank, lr)
        self.sizes: list[tuple[int, int]] = []

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        self.sizes += [(len(b.tokens_T), len(b.cu_seqlens) - 1) for b in micro_batches]
        return super().step(model, micro_batches, loss_fn, lr_scale)


def test_a_trajectory_longer_than_a_micro_batch_is_one_of_its_own_and_changes_no_gradient() -> None:
    (few,) = learn(World([8] * 3), backend_class=Sizes, max_tokens_per_gpu=64)[1]
    (alone,) = learn(World([8] * 3), backend_class=Sizes, max_tokens_per_gpu=1)[1]
    assert isinstance(alone, Sizes)
    assert {count for _, count in alone.sizes} == {1}
    assert min(size for size, _ in alone.sizes) > 1
    assert torch.allclose(alone.table, few.table, atol=1e-6)


def test_ranks_of_context_parallelism_share_a_micro_batch_of_all_their_tokens() -> None:
    def sizes(**flags: Any) -> list[tuple[int, int]]:
        (backend,) = learn(World([8] * 3), backend_class=Sizes, **flags)[1]
        assert isinstance(backend, Sizes)
        return backend.sizes

    shared = sizes(max_tokens_per_gpu=16, megatron={"context_parallel_size": 2})
    assert shared == sizes(max_tokens_per_gpu=32)
    assert 16 < max(size for size, _ in shared) <= 32


def test_the_buffer_hears_every_event_once_and_in_order() -> None:
    world = World([3, 3, 1])
    outcome, (backend,) = learn(world)
    recipe = world.of(PushDone)[0].row.recipe
    row = VersionRow(0, None, 0, recipe)
    expected: list[tuple[object, ...]] = [("publishing", row), ("published", row, 0)]
    for k in (1, 2, 3):
        row = VersionRow(k, k - 1, k, recipe)
        expected += [("stepped", k), ("publishing", row), ("published", row, k)]
    assert [_brief(message) for message in world.delivered] == [
        *expected,
        ("saved", Path("out")),
        ("retire", 3),
    ]
    assert world.num_flushes == 4 + 1 + 1, "before each push, before the checkpoint, at the end"
    assert outcome == LearnerOutcome(3, 0, 3, "the last lease is trained", Path("out"))
    assert backend.num_passes == 0, "one step needs no pass of its own"


def _brief(message: Message | Path) -> tuple[object, ...]:
    if isinstance(message, Path):
        return ("saved", message)
    if isinstance(message, AnnounceVersion):
        return ("publishing", message.row)
    if isinstance(message, PushDone):
        return ("published", message.row, message.through)
    if isinstance(message, Stepped):
        return ("stepped", message.number)
    assert isinstance(message, Retire)
    return ("retire", message.through)


def test_a_ratio_to_the_engine_takes_no_pass_and_compares_it_with_the_learner_once() -> None:
    """What the engine says is what the learner says at the first step; then the learner moves."""
    world = World([4] * 3)
    (backend,) = learn(world, num_steps_per_rollout=2, use_rollout_logprobs=True)[1]
    assert (backend.num_passes, backend.num_steps) == (0, 6)
    usual = World([4] * 3)
    learn(usual, num_steps_per_rollout=2)
    for stepped, with_pass in zip(world.of(Stepped), usual.of(Stepped), strict=True):
        assert stepped.metrics["train/logprob_diff"] == pytest.approx(0.0, abs=1e-5)
        assert with_pass.metrics["train/logprob_diff"] == pytest.approx(0.0, abs=1e-5)
        assert stepped.metrics["train/tis_clipfrac"] == 0


def test_several_steps_take_one_pass_for_the_policy_at_the_start() -> None:
    world = World([4, 4, 1])
    _, (backend,) = learn(world, num_steps_per_rollout=2)
    steps = [step.metrics["train/num_steps"] for step in world.of(Stepped)]
    assert steps == [2, 2, 1], "a single group cannot be split"
    assert backend.num_passes == 2
    first = world.of(Stepped)[0].metrics
    assert first["train/logprob_diff_max"] < 1e-5, "both steps compare with the start, not between"


def test_the_largest_difference_of_several_steps_is_that_of_one() -> None:
    world = World([4], shift=0.001)
    learn(world, num_steps_per_rollout=2)
    (step,) = world.of(Stepped)
    assert step.metrics["train/logprob_diff"] == pytest.approx(0.001, rel=1e-3)
    assert step.metrics["train/logprob_diff_max"] == pytest.approx(0.001, rel=1e-3)


def test_the_metrics_say_what_happened() -> None:
    world = World([4] * 3, lag=1)
    learn(world, max_staleness=3, use_kl_loss=True, kl_loss_coef=0.01, kl_loss_type="k3")
    last = world.of(Stepped)[-1]
    assert last.metrics["train/age_histogram"] == [0, 96]
    assert last.metrics["train/age_max_trained"] == 1
    assert last.metrics["train/num_tokens"] == 96
    assert last.metrics["train/masked_token_share"] == 0
    assert last.metrics["rollout/response_length_mean"] == 6
    assert last.metrics["rollout/turns_mean"] == 2
    assert 0 < last.metrics["train/ess"] < 1
    assert last.metrics["train/mismatch_kl"] == pytest.approx(
        last.metrics["train/mismatch_kl/age_1"]
    )
    assert "train/logprob_diff_on_policy" not in last.metrics
    assert last.metrics["train/logprob_diff"] > 1e-3
    assert (last.wait_s, last.iteration_s) == (1.0, 2.0)
    assert last.metrics["perf/learner_idle_share"] == 0.5
    for name, value in last.metrics.items():
        assert isinstance(value, list) or math.isfinite(value), name


MEASURING = """
import torch
from agentrl.algorithms.grpo import Grpo
from agentrl.telemetry.metrics import Metric

class Measuring(Grpo):
    metrics = (Metric("train/entropy_again", "nats", "entropy of a trained token", "mean"),)

    def loss(self, model, batch, out):
        loss, found = super().loss(model, batch, out)
        entropy_K = out.entropy_T[batch.columns["mask"]].detach()
        mine = torch.stack([entropy_K.sum(), torch.tensor(float(len(entropy_K)))])
        return loss, {**found, "entropy_again": mine}
"""


def test_a_metric_of_a_users_algorithm_is_declared_in_its_class(tmp_path: Path) -> None:
    (tmp_path / "measuring.py").write_text(MEASURING)
    world = World([4] * 2)
    learn(world, num_ranks=2, advantage_estimator=str(tmp_path / "measuring.py"))
    for step in world.of(Stepped):
        assert step.metrics["train/entropy_again"] == pytest.approx(step.metrics["train/entropy"])


def test_without_a_coefficient_the_kl_is_measured_and_changes_nothing() -> None:
    plain, measured = World([4] * 3), World([4] * 3)
    learn(plain)
    learn(measured, use_kl_loss=True, kl_loss_coef=0.0, kl_loss_type="k3")
    # Episodes without an advantage are computed too, which changes the order of a sum.
    torch.testing.assert_close(measured.tables[3], plain.tables[3], rtol=1e-5, atol=1e-6)
    found = [step.metrics["train/kl_loss"] for step in measured.of(Stepped)]
    assert found[0] == 0
    assert found[-1] > 0
    assert "train/kl_loss" not in plain.of(Stepped)[0].metrics


def test_tokens_beyond_the_bound_change_no_weight() -> None:
    world = World([4] * 5, lag=100)
    learn(world, max_staleness=1)
    steps = world.of(Stepped)
    assert [step.old_share for step in steps] == [0, 0, 1, 1, 1]
    assert [step.metrics["train/masked_turn_share"] for step in steps] == [0, 0, 1, 1, 1]
    assert not torch.equal(world.tables[1], world.tables[2])
    for version in (3, 4, 5):
        assert torch.equal(world.tables[version], world.tables[2])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_ranks_share_a_lease_and_reach_the_weights_of_a_single_rank(estimator: str) -> None:
    one, three = World([5, 5, 1], seed=3), World([5, 5, 1], seed=3)
    flags = flags_of(estimator) | {"num_steps_per_rollout": 2}
    flags |= {"use_kl_loss": True, "kl_loss_coef": 0.1, "normalize_advantages": True}
    learn(one, **flags)
    learn(three, num_ranks=3, **flags)
    torch.testing.assert_close(three.tables[1], one.tables[1], rtol=1e-4, atol=1e-5)
    mine, theirs = one.of(Stepped)[0].metrics, three.of(Stepped)[0].metrics
    assert theirs.keys() == mine.keys()
    for name, value in mine.items():
        assert theirs[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


def test_an_iteration_is_skipped_only_when_none_of_its_steps_is_finite() -> None:
    world = World([4] * 3)
    outcome, _ = learn(world, num_steps_per_rollout=2, not_finite_at={0, 2, 3})
    steps = world.of(Stepped)
    assert [step.skipped for step in steps] == [False, True, False]
    assert [step.metrics["train/num_skipped_steps"] for step in steps] == [1, 2, 0]
    assert outcome.num_skipped == 1
    assert torch.equal(world.tables[1], world.tables[2])
    assert "train/loss" not in steps[1].metrics


def test_a_damaged_payload_leaves_the_loss_and_is_counted() -> None:
    world = World([2, 2])
    world.damaged = {"1-0/0#0", "1-1/2#0"}
    learn(world)
    first, second = (step.metrics for step in world.of(Stepped))
    assert first["train/num_missing_trajectories"] == 2
    assert first["train/num_tokens"] == 6 * 6
    assert first["train/masked_token_share"] == pytest.approx(2 / 8)
    assert second["train/num_missing_trajectories"] == 0


def test_a_request_to_stop_ends_between_iterations_without_a_push() -> None:
    world = World([2] * 9)
    outcome, _ = learn(
        world,
        update_weights_interval=2,
        save_interval=2,
        should_stop=lambda: len(world.of(Stepped)) == 3,
    )
    assert [p.through for p in world.of(PushDone)] == [0, 2]
    assert world.delivered[-2:] == [Path("out"), Retire(through=2)]
    assert outcome.reason == "the learner was asked to stop"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("m/{rollout_id}", ["m/2", "m/4", "m/5"]),
        ("m_{rollout_id:05d}", ["m_00002", "m_00004", "m_00005"]),
        ("m", ["m"]),
    ],
)
def test_models_are_kept_under_their_iteration_where_the_place_says_so(
    template: str, expected: list[str]
) -> None:
    places: list[str] = []

    class Keeping(ToyBackend):
        def save_hf(self, directory: Path) -> None:
            places.append(str(directory))

    outcome, _ = learn(World([2] * 5), backend_class=Keeping, save_hf=template, save_interval=2)
    assert places == expected
    assert str(outcome.saved) == expected[-1]
