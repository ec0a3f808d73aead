"""Functions of the user's in the whole loop: over ranks, interruptions, and in the metrics."""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.algorithms.rows import Row, Trained
from agentrl.errors import DataError, HookError, PeerLostError
from agentrl.types import GroupRows
from agentrl.wire.messages import Stepped
from tests.integration.learner_world import World, learn


def rewards(groups: Sequence[GroupRows]) -> list[list[float]]:
    """Against the mean of the lease."""
    every = [reward for group in groups for reward in group.rewards]
    return [[r - sum(every) / len(every) for r in group.rewards] for group in groups]


def advantages(rows: Sequence[Row]) -> list[Any]:
    return [row.credit.value * (2 + row.columns["prox"]) for row in rows]


def weigh(trained: Trained) -> torch.Tensor:
    return trained.engine_log_ratio("sequence").exp().clamp(max=1.5)


def weigh_and_measure(
    args: Any, *, pg_loss: Any, loss_masks: Any, train_log_probs: Any, **kwargs: Any
) -> Any:
    return pg_loss * 0.5, loss_masks, {"sure": torch.cat(train_log_probs), "half/way": 0.5}


def by_chance(groups: Sequence[GroupRows]) -> list[list[float]]:
    return [[float(torch.rand(())) for _ in group.rewards] for group in groups]


def worst_of_each(args: Any, groups: Any) -> None:
    for group in groups:
        min(group, key=lambda sample: sample.reward).remove_sample = True


def differs(args: Any, groups: Any) -> None:
    groups[0][0].remove_sample = next(CALLS) == 1


def narrowed(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """Leave out the first response token, and halve what the others are given."""
    for mask in rollout_data["loss_masks"]:
        mask[0] = 0
    rollout_data["advantages"] = [found / 2 for found in rollout_data["advantages"]]


def fails_once(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    if next(CALLS) == 2:
        raise ValueError(f"not in iteration {rollout_id}")


#: Of all ranks.
CALLS: Iterator[int] = count()
HOOKS: dict[str, Any] = {
    "custom_reward_post_process_path": f"{__name__}:rewards",
    "custom_advantage_function_path": f"{__name__}:advantages",
    "custom_tis_function_path": f"{__name__}:weigh",
    "rollout_sample_filter_path": f"{__name__}:worst_of_each",
    "rollout_data_postprocess_path": f"{__name__}:narrowed",
}


def test_ranks_train_what_one_would() -> None:
    _, (alone,) = learn(World([2] * 4, lag=1), **HOOKS)
    _, (one, other) = learn(World([2] * 4, lag=1), num_ranks=2, **HOOKS)
    _, (usual,) = learn(World([2] * 4, lag=1))
    assert torch.equal(one.table, other.table)
    assert torch.allclose(one.table, alone.table, atol=1e-4)
    assert not torch.allclose(alone.table, usual.table, atol=1e-2)


def test_a_learner_that_died_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    _, unharmed = learn(World([2] * 5), **HOOKS)
    world = World([2] * 5)
    world.dies_after = 3
    with pytest.raises(PeerLostError):
        learn(world, save=str(tmp_path), save_interval=2, **HOOKS)
    world.dies_after = None
    _, resumed = learn(world, save=str(tmp_path), save_interval=2, **HOOKS)
    assert torch.equal(resumed[0].table, unharmed[0].table)


def test_rewards_that_differ_between_ranks_are_refused() -> None:
    path = f"{__name__}:by_chance"
    with pytest.raises(DataError, match=r"plan of lease 1.*must answer alike in every process"):
        learn(World([2]), num_ranks=2, custom_reward_post_process_path=path)


def test_samples_that_one_rank_removes_alone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CALLS", count())
    with pytest.raises(HookError, match=r"differs removed other samples on learner rank 1 than on"):
        learn(World([2]), num_ranks=2, rollout_sample_filter_path=f"{__name__}:differs")


def test_a_function_that_fails_on_one_rank_ends_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CALLS", count())
    world = World([2] * 3)
    said = (
        r"--rollout-data-postprocess-path \S+:fails_once: ValueError: not in iteration 2 \(tests/"
    )
    with pytest.raises(HookError, match=said):
        learn(world, num_ranks=2, rollout_data_postprocess_path=f"{__name__}:fails_once")
    assert [message.number for message in world.of(Stepped)] == [1]


def test_what_a_correction_measures_is_a_metric_of_the_iteration() -> None:
    world = World([2])
    learn(world, custom_tis_function_path=f"{__name__}:weigh_and_measure")
    (step,) = world.of(Stepped)
    assert step.metrics["train/correction/half_way"] == pytest.approx(0.5)
    assert step.metrics["train/correction/sure"] == pytest.approx(-2.0794, abs=1e-3)  # log of 1/8
    assert step.metrics["train/dropped"] == 0
    assert "train/tis_clipfrac" not in step.metrics
