"""What a function of the user's may change of the rows that a rank is about to train."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.errors import HookError
from agentrl.learner.data_postprocess import postprocess
from agentrl.learner.hooks import LearnerHooks
from agentrl.learner.iteration import IterationResult, train_lease
from tests.parity.golden import LEASE, Batch, TableBackend, lineage
from tests.parity.test_estimators import Watched

SEEN: list[Any] = []


def every_other(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """Train every other token alone, at three times its advantage; where nothing is trained a
    number may be anything."""
    SEEN.append((args.max_staleness, rollout_id, rollout_data))
    for place, mask in enumerate(rollout_data["loss_masks"]):
        mask[::2] = 0
        found = 3 * rollout_data["advantages"][place]
        rollout_data["advantages"][place] = torch.where(mask.bool(), found, torch.nan)


def nothing(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    rollout_data["mine"] = "of its own"


def noted(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    SEEN.append(rollout_data)


def train(cfg: RunConfig, backend: Any = None) -> tuple[Any, IterationResult]:
    batch, backend = Batch(2), backend or Watched(2)
    parts = (batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
    return backend, train_lease(*parts, LearnerHooks(cfg))


@pytest.mark.parametrize("estimator", ["grpo", "ppo"])
def test_advantages_and_masks_are_trained_as_it_left_them(estimator: str) -> None:
    SEEN.clear()
    flags: dict[str, Any] = {"max_staleness": 8, "advantage_estimator": estimator}
    plain, before = train(RunConfig(**flags))
    changed, after = train(
        RunConfig(rollout_data_postprocess_path=f"{__name__}:every_other", **flags)
    )
    ((bound, iteration, data),) = SEEN
    assert (bound, iteration) == (8, LEASE)
    assert ("returns" in data) == (estimator == "ppo")
    for tokens, mask, length in zip(
        data["tokens"], data["loss_masks"], data["response_lengths"], strict=True
    ):
        key = tokens.numpy().astype(np.int32).tobytes()
        old, new = plain.gradients[0][key], changed.gradients[0].get(key)
        trained = np.zeros(len(old), dtype=bool)
        trained[len(old) - 1 - length : -1] = mask.bool().numpy()
        if new is None:
            new = np.zeros_like(old)
        np.testing.assert_allclose(new[trained], 3 * old[trained], rtol=1e-5)
        assert not new[~trained].any()
    num = sum(int(mask.sum()) for mask in data["loss_masks"])
    taken = before.counts.num_trained - num
    assert 0 < taken < before.counts.num_trained
    assert after.counts.num_trained == num
    assert after.counts.num_masked == before.counts.num_masked + taken


@pytest.mark.parametrize("estimator", ["grpo", "ppo", "reinforce_plus_plus"])
def test_a_function_that_changes_nothing_changes_nothing(estimator: str) -> None:
    flags: dict[str, Any] = {
        "advantage_estimator": estimator,
        "normalize_advantages": True,
        "num_steps_per_rollout": 2,
    }
    plain, before = train(RunConfig(**flags))
    same, after = train(RunConfig(rollout_data_postprocess_path=f"{__name__}:nothing", **flags))
    assert torch.equal(plain.table, same.table)
    assert torch.equal(plain.values, same.values)
    assert (before.counts, before.max_trained_age) == (after.counts, after.max_trained_age)


FAULTS = {
    "a mask of another shape": (
        "d['loss_masks'][1] = d['loss_masks'][1][1:]",
        r'rollout_data\["loss_masks"\]\[1\] \(episode g\d/\d#0\) has the shape \(\d+,\); \(\d+,\) ',
    ),
    "too few masks": (
        "d['loss_masks'].pop()",
        r'rollout_data\["loss_masks"\] is no list of \d+ tensors, one a sample',
    ),
    "no masks": ("del d['loss_masks']", r'rollout_data\["loss_masks"\] is no list of \d+ tensors'),
    "half a token": (
        "d['loss_masks'][0] = d['loss_masks'][0] * 0.5",
        r'rollout_data\["loss_masks"\]\[0\] \(episode g\d/\d#0\) holds 0\.5; 0 and 1 are wanted',
    ),
    "a token that nobody sampled": (
        "d['loss_masks'] = [mask * 0 + 1 for mask in d['loss_masks']]",
        r'rollout_data\["loss_masks"\]\[\d+\] \(episode .*\) brings in \d+ tokens whose mask was 0',
    ),
    "advantages of another shape": (
        "d['advantages'][2] = d['advantages'][2].sum()",
        r'rollout_data\["advantages"\]\[2\] \(episode g\d/\d#0\) has the shape \(\); \(\d+,\) is ',
    ),
    "an advantage that is not finite": (
        "d['advantages'][0][:] = float('inf')",
        r'\d+ numbers of rollout_data\["advantages"\]\[0\] \(episode .*\) are not finite',
    ),
    "advantages that are no numbers": (
        "d['advantages'][0] = ['much'] * len(d['advantages'][0])",
        r'rollout_data\["advantages"\]\[0\] \(episode .*\) holds no numbers \(',
    ),
    "what is not read back": (
        "d['log_probs'][0] += 1",
        r'it changed rollout_data\["log_probs"\], which is not read back; change advantages or los',
    ),
    "a list that is not read back": (
        "d['rewards'] = d['rewards'][1:]",
        r'it changed rollout_data\["rewards"\], which is not read back',
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_answer_is_told_with_function_key_and_sample(fault: str, tmp_path: Path) -> None:
    body, said = FAULTS[fault]
    (tmp_path / "mine.py").write_text(f"def mine(args, rollout_id, d):\n    {body}\n")
    cfg = RunConfig(max_staleness=8, rollout_data_postprocess_path=f"{tmp_path}/mine.py")
    place = r"--rollout-data-postprocess-path \S+mine\.py"
    with pytest.raises(HookError, match=rf"^{place}: {said}.*: mine \(.*mine\.py:1\)$"):
        train(cfg)


class _Torn(TableBackend):
    """Another rank of the same replica has left other data."""

    def all_gather(self, value: Any) -> list[Any]:
        if isinstance(value, dict):  # digests of the plan
            return [value]
        failure, (replica, digest) = value
        return [value, [failure, [replica, digest[::-1]]]]


def test_ranks_of_a_replica_that_leave_other_data_are_refused() -> None:
    cfg = RunConfig(rollout_data_postprocess_path=f"{__name__}:nothing")
    with pytest.raises(HookError, match=r"left other data on learner rank 1 than .* answer alike"):
        train(cfg, _Torn(2))


def test_a_rank_without_a_row_is_called_with_the_same_keys() -> None:
    SEEN.clear()
    cfg = RunConfig(
        rollout_data_postprocess_path=f"{__name__}:noted",
        advantage_estimator="ppo",
        use_kl_loss=True,
        use_opd=True,
        max_staleness=8,
    )
    train(cfg)
    postprocess(LearnerHooks(cfg), load_algorithm(cfg), [], TableBackend(1))
    full, empty = SEEN
    assert full.keys() == empty.keys()
    assert not any(empty.values())
