"""`--custom-convert-samples-to-train-data-path` in the whole loop: over ranks and interruptions."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.errors import HookError, PeerLostError
from agentrl.wire.messages import Stepped
from tests.collectives import Threads
from tests.integration.learner_world import World, learn
from tests.integration.toy_backend import ToyBackend

#: Of each call, how many samples it was given.
CALLS: list[int] = []


def against_the_mean(args: Any, samples: Any) -> dict[str, Any]:
    """Train the later half of each response of the samples that are not the best of their group."""
    CALLS.append(len(samples))
    size = args.n_samples_per_prompt
    kept, rewards, masks = [], [], []
    for start in range(0, len(samples), size):
        group = samples[start : start + size]
        earned = [sample.get_reward_value(args) for sample in group]
        best = max(group, key=lambda sample: sample.get_reward_value(args))
        for sample, reward in zip(group, earned, strict=True):
            if sample is not best:
                half = sample.response_length // 2
                kept.append(sample)
                rewards.append(reward - sum(earned) / size)
                masks.append([0] * half + sample.loss_mask[half:])
    return {
        "tokens": [sample.tokens for sample in kept],
        "response_lengths": [sample.response_length for sample in kept],
        "rewards": rewards,
        "raw_reward": [sample.get_reward_value(args) for sample in kept],
        "truncated": [int(s.status == s.Status.TRUNCATED) for s in kept],
        "sample_indices": [sample.index for sample in kept],
        "loss_masks": masks,
        "rollout_log_probs": [sample.rollout_log_probs for sample in kept],
    }


def as_they_are(args: Any, samples: Any) -> dict[str, Any]:
    CALLS.append(len(samples))
    return {"rewards": [sample.reward for sample in samples]}


def fails_in_the_second(args: Any, samples: Any) -> dict[str, Any]:
    if next(ITERATIONS) == 2:
        raise ValueError("not now")
    return {"rewards": [sample.reward for sample in samples]}


class SameRows(ToyBackend):
    """Ranks that train on the same rows: of each fetch, one of them asks."""

    number = 0

    def __init__(self, group: Threads, rank: int) -> None:
        super().__init__(group, rank)
        self.data_parallel_rank, self.data_parallel_size = 0, 1
        self.replica, self._rank = self, rank

    def gather(self, value: Any) -> list[Any]:
        return self._threads.gather(self._rank, value)


ITERATIONS = count(1)
CONVERTED: dict[str, Any] = {
    "custom_convert_samples_to_train_data_path": f"{__name__}:against_the_mean",
    "n_samples_per_prompt": 4,
}


def test_ranks_train_what_one_would_and_one_of_them_calls_it() -> None:
    CALLS.clear()
    flags: dict[str, Any] = {
        "custom_convert_samples_to_train_data_path": f"{__name__}:against_the_mean",
        "n_samples_per_prompt": 4,
    }
    _, (alone,) = learn(World([2] * 4, lag=1), **flags)
    assert CALLS == [8] * 4
    world = World([2] * 4, lag=1)
    _, (one, other) = learn(world, num_ranks=2, **flags)
    assert CALLS == [8] * 8
    _, (usual,) = learn(World([2] * 4, lag=1))
    assert torch.equal(one.table, other.table)
    assert torch.allclose(one.table, alone.table, atol=1e-4)
    assert not torch.allclose(alone.table, usual.table, atol=1e-2)
    for step in world.of(Stepped):
        assert step.metrics["rollout/num_filtered_samples"] == 2
        # Of the six tokens that each of six samples has sampled, three are trained.
        assert step.metrics["train/masked_token_share"] == pytest.approx(0.5)


def test_of_ranks_that_share_their_rows_one_fetches_the_lease_for_it() -> None:
    CALLS.clear()
    _, (one, other) = learn(World([2] * 2), num_ranks=2, backend_class=SameRows, **CONVERTED)
    assert CALLS == [8] * 2
    assert torch.equal(one.table, other.table)


def test_a_learner_that_died_calls_it_again_and_goes_on_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    _, unharmed = learn(World([2] * 5), **CONVERTED)
    world = World([2] * 5)
    world.dies_after = 3
    with pytest.raises(PeerLostError):
        learn(world, save=str(tmp_path), save_interval=2, **CONVERTED)
    world.dies_after = None
    CALLS.clear()
    _, resumed = learn(world, save=str(tmp_path), save_interval=2, **CONVERTED)
    assert len(CALLS) == 3
    assert torch.equal(resumed[0].table, unharmed[0].table)


def test_what_it_raises_ends_all_ranks_with_flag_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ITERATIONS", count(1))
    world = World([2] * 3)
    path = f"{__name__}:fails_in_the_second"
    said = (
        r"--custom-convert-samples-to-train-data-path \S+: ValueError: not now \(tests/.*py:\d+\)"
    )
    with pytest.raises(HookError, match=said):
        learn(world, num_ranks=2, custom_convert_samples_to_train_data_path=path)
    assert [message.number for message in world.of(Stepped)] == [1]


def test_a_damaged_episode_is_left_to_the_learner() -> None:
    CALLS.clear()
    world = World([2])
    world.damaged = {"1-0/3#0"}
    flags = CONVERTED | {"custom_convert_samples_to_train_data_path": f"{__name__}:as_they_are"}
    learn(world, **flags)
    (step,) = world.of(Stepped)
    assert CALLS == [7]
    assert step.metrics["train/num_missing_trajectories"] == 1
