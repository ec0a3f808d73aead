"""What a function of the user's makes of the samples of a lease, and what it may not make of it."""

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms.load import load_algorithm, shown_algorithm
from agentrl.buffer.settings import BufferSettings
from agentrl.columns import Column
from agentrl.config.run import RunConfig
from agentrl.learner.hooks import LearnerHooks
from agentrl.learner.iteration import train_lease
from agentrl.learner.metrics import train_metrics
from agentrl.learner.rows import Trajectory
from agentrl.types import EpisodeId, SamplingParams, TrajectoryRow
from tests.parity.golden import Batch, lineage
from tests.parity.test_estimators import Watched
from tests.unit import conversion_ground
from tests.unit.conversion_ground import SEEN, of, train, written


def gradients(backend: Any) -> dict[bytes, Any]:
    found: dict[bytes, Any] = backend.gradients[0]
    return found


def gathered(batch: Batch, episodes: Iterable[EpisodeId], segments: Container[int]) -> set[bytes]:
    """The tokens of such segments of these episodes."""
    wanted = set(episodes)
    return {
        one.tokens_L.tobytes()
        for one in batch.rows.values()
        if one.row.episode in wanted and one.row.meta.segment in segments
    }


@pytest.mark.parametrize("estimator", ["grpo", "ppo", "reinforce_plus_plus", "opob"])
def test_rewards_are_trained_as_those_of_a_reward_post_process(
    estimator: str, tmp_path: Path
) -> None:
    (tmp_path / "post.py").write_text(
        "def post(args, samples):\n    return None, [2.0 * s.reward - s.index for s in samples]\n"
    )
    flags: dict[str, Any] = {"advantage_estimator": estimator, "normalize_advantages": True}
    cfg = written(
        tmp_path, "data['rewards'] = [2.0 * s.reward - s.index for s in samples]", **flags
    )
    _, converted, after = train(cfg)
    post: dict[str, Any] = {"custom_reward_post_process_path": f"{tmp_path}/post.py"}
    _, processed, before = train(RunConfig(max_staleness=8, **post, **flags))
    assert torch.equal(converted.table, processed.table)
    assert torch.equal(converted.values, processed.values)
    assert (after.counts, after.max_trained_age) == (before.counts, before.max_trained_age)


def test_slimes_own_conversion_trains_its_rewards_and_nothing_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", logger="agentrl.learner.hooks"):
        _, converted, after = train(RunConfig(max_staleness=8, **of("slimes")))
    assert caplog.messages == []
    post: dict[str, Any] = {
        "custom_reward_post_process_path": f"{conversion_ground.__name__}:by_the_mean"
    }
    _, processed, before = train(RunConfig(max_staleness=8, **post))
    assert torch.equal(converted.table, processed.table)
    assert after.counts == before.counts
    assert after.num_filtered == 0


#: The sums of an episode's masks, as slime makes them.
SUMS = """\
totals = {}
for index, mask in zip(data['sample_indices'], data['loss_masks']):
    totals[index] = totals.get(index, 0) + sum(mask)
data['rollout_mask_sums'] = [totals[index] for index in data['sample_indices']]
"""
NARROWED = "for mask in data['loss_masks']:\n    mask[::2] = [0] * len(mask[::2])\n"


def test_sums_are_taken_of_the_masks_that_it_returns_or_was_given(tmp_path: Path) -> None:
    """They change nothing: what it takes out stays in the denominator."""
    _, without, before = train(written(tmp_path, NARROWED))
    for body in (NARROWED + SUMS, SUMS + NARROWED):
        _, backend, result = train(written(tmp_path, body))
        assert torch.equal(backend.table, without.table)
        assert result.counts == before.counts


def test_it_is_called_once_with_whole_samples_in_order() -> None:
    SEEN.clear()
    cfg = RunConfig(max_staleness=8, **of("noted"))
    batch, _, _ = train(cfg)
    (samples,) = SEEN
    rows = [row for group in batch.header.groups for row in group.trajectories]
    assert len(samples) == len(rows)
    for sample, row in zip(samples, rows, strict=True):
        given = batch.rows[row.payload.offset]
        start = int(given.sampled_L.argmax())
        assert sample.tokens == given.tokens_L.tolist()
        assert sample.response_length == len(given.tokens_L) - start
        assert sample.loss_mask == given.sampled_L[start:].astype(int).tolist()
        assert sample.rollout_log_probs == given.logprobs_L[start:].tolist()
        assert sample.reward == row.meta.reward
        assert sample.rollout_id == sample.index
    assert len({sample.index for sample in samples}) == sum(
        len(group.episodes) for group in batch.header.groups
    )


def test_samples_that_it_leaves_out_are_not_trained_and_stay_in_the_denominator(
    tmp_path: Path,
) -> None:
    batch, every, _ = train(written(tmp_path, ""))
    two_of_three = (
        "pairs = [*zip(data['sample_indices'], range(len(samples)))]\n"
        "for key in data:\n"
        "    data[key] = [data[key][place] for index, place in pairs if index % 3]"
    )
    _, some, result = train(written(tmp_path, two_of_three))
    left_out = [episode for group in batch.header.groups for episode in group.episodes][::3]
    gone = gathered(batch, left_out, range(2))
    assert gradients(every).keys() & gone
    assert gradients(some).keys() == gradients(every).keys() - gone
    for tokens, gradient in gradients(some).items():
        np.testing.assert_array_equal(gradient, gradients(every)[tokens])
    assert train_metrics(result)[0]["rollout/num_filtered_samples"] == len(left_out)


def test_a_segment_that_it_leaves_out_is_not_trained_and_the_others_are(tmp_path: Path) -> None:
    """Its tokens tell the segments of an episode apart, in whatever order they come back."""
    batch, every, _ = train(written(tmp_path, ""))
    drop = (
        "seen = {}\n"
        "for place, s in enumerate(samples):\n"
        "    seen.setdefault(s.index, []).append(place)\n"
        "gone = {places[0] for places in seen.values() if len(places) > 1}\n"
        "assert gone\n"
        "for key in data:\n"
        "    data[key] = [v for p, v in enumerate(data[key]) if p not in gone][::-1]"
    )
    _, some, result = train(written(tmp_path, drop))
    rows = [row for group in batch.header.groups for row in group.trajectories]
    gone = gathered(batch, (row.episode for row in rows if row.meta.segment), [0])
    assert result.num_filtered == 0
    for tokens, before in gradients(every).items():
        after = gradients(some).get(tokens, np.zeros_like(before))
        np.testing.assert_array_equal(after, before * (tokens not in gone))


def test_tokens_that_it_takes_out_are_not_trained(tmp_path: Path) -> None:
    _, every, before = train(written(tmp_path, ""))
    batch, some, after = train(written(tmp_path, NARROWED))
    for one in batch.rows.values():
        tokens, length = one.tokens_L.tobytes(), len(one.tokens_L)
        if tokens not in gradients(every):
            continue
        old = gradients(every)[tokens]
        new = gradients(some).get(tokens, np.zeros_like(old))
        kept = np.ones(length, dtype=bool)
        kept[int(one.sampled_L.argmax()) - 1 : length - 1 : 2] = False
        np.testing.assert_array_equal(new, np.where(kept, old, 0))
    assert 0 < after.counts.num_trained < before.counts.num_trained
    assert after.counts.num_trained + after.counts.num_masked == (
        before.counts.num_trained + before.counts.num_masked
    )


def test_what_it_may_return_in_another_form_is_the_same(tmp_path: Path) -> None:
    body = (
        "data['rewards'] = torch.tensor(data['rewards'], dtype=torch.float64)\n"
        "data['loss_masks'] = [torch.tensor(mask) for mask in data['loss_masks']]\n"
        "data['tokens'] = [torch.tensor(tokens) for tokens in data['tokens']]\n"
        "data['rollout_log_probs'] = [torch.tensor(p) for p in data['rollout_log_probs']]\n"
        "data['response_lengths'] = torch.tensor(data['response_lengths'])"
    )
    _, plain, _ = train(written(tmp_path, ""))
    _, tensors, _ = train(written(tmp_path, body))
    _, few, _ = train(written(tmp_path, "data = {'rewards': data['rewards']}"))
    assert torch.equal(plain.table, tensors.table)
    assert torch.equal(plain.table, few.table)


def test_samples_that_a_filter_removed_say_so_and_are_not_trained() -> None:
    SEEN.clear()
    filtered: dict[str, Any] = {
        "rollout_sample_filter_path": f"{conversion_ground.__name__}:best_of_each",
        "max_staleness": 8,
    }
    batch, _, result = train(RunConfig(**filtered, **of("noted")))
    (samples,) = SEEN
    removed = {sample.index for sample in samples if sample.remove_sample}
    assert len(removed) == result.num_filtered == len(batch.header.groups)


class Damaged(Batch):
    """The payload of its first trajectory cannot be read."""

    def fetch(self, rows: Sequence[TrajectoryRow], optional: Sequence[Column]) -> list[Any]:
        found: list[Trajectory | None] = [*super().fetch(rows, optional)]
        return [
            None if row.payload.offset == 0 else one for row, one in zip(rows, found, strict=True)
        ]


def test_a_damaged_sample_is_not_given_and_is_counted_as_in_other_runs() -> None:
    SEEN.clear()
    plain = RunConfig(max_staleness=8, disable_rewards_normalization=True)
    _, _, before = train(plain, Damaged(2))
    _, _, after = train(RunConfig(max_staleness=8, **of("noted")), Damaged(2))
    assert len(SEEN[0]) == len(Batch(2).rows) - 1
    assert before.counts.num_missing == 1
    assert after.counts == before.counts


def test_keys_that_nothing_reads_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = written(tmp_path, "data |= {'raw_reward': [], 'round_number': 3, 'mine': [1]}")
    hooks = LearnerHooks(cfg)
    with caplog.at_level("INFO", logger="agentrl.learner.hooks"):
        for _ in range(2):
            batch = Batch(2)
            parts = (batch.header, load_algorithm(cfg), Watched(2), lineage(), batch.fetch)
            train_lease(*parts, hooks)
    told = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[2] for line in told] == [
        "nothing reads what it returned as mine, round_number"
    ]


def test_a_view_does_not_run_it() -> None:
    assert shown_algorithm(RunConfig(**of("noted"))) is None


def test_leases_tell_the_rows_of_their_tasks_for_it() -> None:
    settings = [
        BufferSettings.from_config(RunConfig(**flags), "ipc://nowhere", SamplingParams())
        for flags in ({}, of("noted"))
    ]
    assert [each.tells_rows for each in settings] == [False, True]
