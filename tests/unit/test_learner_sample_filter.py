"""Episodes that a function of the user's leaves out of training, on a lease of ragged groups."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms.load import load_algorithm, shown_algorithm
from agentrl.config.run import RunConfig
from agentrl.errors import HookError
from agentrl.learner.hooks import LearnerHooks
from agentrl.learner.iteration import IterationResult, train_lease
from agentrl.learner.metrics import train_metrics
from tests.parity.golden import Batch, TableBackend, lineage
from tests.parity.test_estimators import Watched


def best_of_each(args: Any, groups: Any) -> None:
    """Leave out the episode of each group that earned most."""
    for group in groups:
        max(group, key=lambda sample: sample.get_reward_value(args)).remove_sample = True


def all_of_them(args: Any, groups: Any) -> None:
    for group in groups:
        for sample in group:
            sample.remove_sample = True


def train(cfg: RunConfig, backend: Any = None) -> tuple[Batch, Any, IterationResult]:
    batch, backend = Batch(2), backend or Watched(2)
    parts = (batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
    return batch, backend, train_lease(*parts, LearnerHooks(cfg))


@pytest.mark.parametrize("flags", [{}, {"calculate_per_token_loss": True}], ids=str)
def test_what_is_removed_counts_in_its_group_and_is_not_trained(flags: dict[str, Any]) -> None:
    _, plain, every = train(RunConfig(max_staleness=8, **flags))
    cfg = RunConfig(max_staleness=8, rollout_sample_filter_path=f"{__name__}:best_of_each", **flags)
    batch, filtered, result = train(cfg)
    best = {
        max(zip(group.rewards, group.episodes, strict=True), key=lambda pair: pair[0])[1]
        for group in batch.header.groups
    }
    removed = {one.tokens_L.tobytes() for one in batch.rows.values() if one.row.episode in best}
    before, after = plain.gradients[0], filtered.gradients[0]
    assert after.keys() == before.keys() - removed
    assert before.keys() & removed
    for tokens, gradient in after.items():
        np.testing.assert_array_equal(gradient, before[tokens])
    assert train_metrics(result)[0]["rollout/num_filtered_samples"] == len(batch.header.groups)
    assert "rollout/num_filtered_samples" not in train_metrics(every)[0]


def test_a_lease_of_which_all_is_removed_trains_nothing() -> None:
    cfg = RunConfig(max_staleness=8, rollout_sample_filter_path=f"{__name__}:all_of_them")
    backend = TableBackend(2)
    before = backend.table.detach().clone()
    batch, _, result = train(cfg, backend)
    assert (result.counts.num_trained, result.max_trained_age) == (0, -1)
    assert torch.equal(backend.table, before)
    assert result.num_filtered == sum(len(group.episodes) for group in batch.header.groups)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("groups[0].pop()", r"it changed the lists of samples; set sample\.remove_sample instead"),
        ("groups.clear()", r"it changed the lists of samples"),
        ("groups[1][1].reward = 7.0", r"it changed the reward of episode g2/1#0, which is not re"),
    ],
)
def test_another_change_is_refused_with_the_line_of_the_function(
    body: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(f"def mine(args, groups):\n    {body}\n")
    cfg = RunConfig(rollout_sample_filter_path=f"{tmp_path}/mine.py")
    with pytest.raises(HookError, match=rf"mine\.py: {said}.*: mine \(.*mine\.py:1\)$"):
        train(cfg)


def test_a_sample_says_what_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def mine(args, groups):\n    groups[0][0].status\n")
    cfg = RunConfig(rollout_sample_filter_path=f"{tmp_path}/mine.py")
    with pytest.raises(
        HookError, match=r"a sample has no 'status' here: .* is given all of .* \(\S*mine\.py:2\)"
    ):
        train(cfg)


def test_a_view_does_not_run_it() -> None:
    assert shown_algorithm(RunConfig(rollout_sample_filter_path="mine:mine")) is None
    assert shown_algorithm(RunConfig(rollout_data_postprocess_path="mine:mine")) is None
