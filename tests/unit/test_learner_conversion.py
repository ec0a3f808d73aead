"""What a function of the user's makes of the samples of a lease, and what it may not make of it."""

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms.load import check_algorithm, load_algorithm, shown_algorithm
from agentrl.buffer.settings import BufferSettings
from agentrl.columns import Column
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, HookError
from agentrl.learner.hooks import LearnerHooks
from agentrl.learner.iteration import IterationResult, train_lease
from agentrl.learner.metrics import train_metrics
from agentrl.learner.rows import Trajectory
from agentrl.types import EpisodeId, GroupRows, SamplingParams, TrajectoryRow
from tests.parity.golden import Batch, lineage
from tests.parity.test_estimators import Watched

SEEN: list[Any] = []
FLAG = "custom_convert_samples_to_train_data_path"


def slimes(args: Any, samples: Any) -> dict[str, Any]:
    """What slime's own conversion does, with rewards against the mean of the group: each field of a
    sample that it looks at, and each key that it returns."""
    from slime.utils.data import get_source  # type: ignore[import-not-found, unused-ignore]
    from slime.utils.types import Sample  # type: ignore[import-not-found, unused-ignore]

    by_group: dict[int, list[float]] = {}
    for sample in samples:
        by_group.setdefault(sample.group_index, []).append(sample.get_reward_value(args))
    means = {index: sum(found) / len(found) for index, found in by_group.items()}
    data: dict[str, Any] = {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [s.get_reward_value(args) - means[s.group_index] for s in samples],
        "raw_reward": [sample.get_reward_value(args) for sample in samples],
        "truncated": [int(s.status == Sample.Status.TRUNCATED) for s in samples],
        "sample_indices": [sample.index for sample in samples],
    }
    data["loss_masks"] = []
    for sample in samples:
        if sample.loss_mask is None:
            sample.loss_mask = [1] * sample.response_length
        assert len(sample.loss_mask) == sample.response_length
        if sample.remove_sample:
            sample.loss_mask = [0] * sample.response_length
        data["loss_masks"].append(sample.loss_mask)
    free = (number for number in itertools.count() if all(s.rollout_id != number for s in samples))
    data["rollout_ids"] = [next(free) if s.rollout_id is None else s.rollout_id for s in samples]
    totals: Counter[int] = Counter()
    for rollout, mask in zip(data["rollout_ids"], data["loss_masks"], strict=True):
        totals[rollout] += sum(mask)
    data["rollout_mask_sums"] = [totals[rollout] for rollout in data["rollout_ids"]]
    if any("raw_reward" in (sample.metadata or {}) for sample in samples):
        data["raw_reward"] = [s.metadata.get("raw_reward", s.reward) for s in samples]
    if "round_number" in (samples[0].metadata or {}):
        data["round_number"] = [sample.metadata["round_number"] for sample in samples]
    if getattr(args, "rollout_top_p", 1.0) != 1.0:
        assert all(sample.rollout_top_p_token_offsets is not None for sample in samples)
        data["rollout_top_p_token_ids"] = [sample.rollout_top_p_token_ids for sample in samples]
    for key, field in (
        ("rollout_log_probs", "rollout_log_probs"),
        ("rollout_routed_experts", "rollout_routed_experts"),
        ("metadata", "train_metadata"),
        ("teacher_log_probs", "teacher_log_probs"),
    ):
        if getattr(samples[0], field) is not None:
            data[key] = [getattr(sample, field) for sample in samples]
    if any(sample.multimodal_train_inputs is not None for sample in samples):
        data["multimodal_train_inputs"] = [sample.multimodal_train_inputs for sample in samples]
    if samples[0].metadata is not None:
        data["source_names"] = [get_source(sample) for sample in samples]
    return data


def by_the_mean(groups: Sequence[GroupRows]) -> list[list[float]]:
    """For `--custom-reward-post-process-path`: the rewards of `slimes`, where each segment counts
    in the mean of its group."""
    found = []
    for group in groups:
        rewards = dict(zip(group.episodes, group.rewards, strict=True))
        mean = sum(rewards[row.episode] for row in group.trajectories) / len(group.trajectories)
        found.append([reward - mean for reward in group.rewards])
    return found


def noted(args: Any, samples: Any) -> dict[str, Any]:
    SEEN.append(samples)
    return {"rewards": [sample.reward for sample in samples]}


def best_of_each(args: Any, groups: Any) -> None:
    for group in groups:
        max(group, key=lambda sample: sample.reward).remove_sample = True


def of(name: str) -> dict[str, Any]:
    """The flag with that function of this file."""
    return {FLAG: f"{__name__}:{name}"}


def train(cfg: RunConfig, batch: Batch | None = None) -> tuple[Batch, Any, IterationResult]:
    batch, backend = batch or Batch(2), Watched(2)
    parts = (batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
    return batch, backend, train_lease(*parts, LearnerHooks(cfg))


def written(folder: Path, body: str, **flags: Any) -> RunConfig:
    """A run with a function of that body, which begins from `data`: what is all there."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    file = folder / f"mine{len([*folder.iterdir()])}.py"
    file.write_text(
        "import torch\n\n"
        "def mine(args, samples):\n"
        "    data = {\n"
        "        'tokens': [list(s.tokens) for s in samples],\n"
        "        'response_lengths': [s.response_length for s in samples],\n"
        "        'rewards': [s.reward for s in samples],\n"
        "        'sample_indices': [s.index for s in samples],\n"
        "        'loss_masks': [list(s.loss_mask) for s in samples],\n"
        "        'rollout_log_probs': [list(s.rollout_log_probs) for s in samples],\n"
        "    }\n"
        f"{lines}    return data\n"
    )
    own: dict[str, Any] = {FLAG: str(file)}
    return RunConfig(max_staleness=8, **own, **flags)


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
    post: dict[str, Any] = {"custom_reward_post_process_path": f"{__name__}:by_the_mean"}
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
        "rollout_sample_filter_path": f"{__name__}:best_of_each",
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


#: Leaves out one segment of two, and says no tokens.
TORN = """\
seen = data['sample_indices']
place = next(place for place, index in enumerate(seen) if seen.count(index) > 1)
for key in data:
    del data[key][place]
data = {key: data[key] for key in ('rewards', 'sample_indices')}
"""
FAULTS = {
    "no dict": ("data = [1]", r"it returned a list; a dict is wanted"),
    "no rewards": ("del data['rewards']", r'its dict has no "rewards": a number for each sample'),
    "no list": ("data['tokens'] = 7", r'"tokens" is a int; a list is wanted'),
    "too few entries": (
        "data['tokens'].pop()",
        r'"tokens" has \d+ entries, and "rewards" \d+: one for each sample is wanted',
    ),
    "another token": (
        "data['tokens'][1][3] += 1",
        r'"tokens"\[1\] \(sample \d+, episode g1/\d#0.*\) is \d+ at position 3, where it was given',
    ),
    "another log-probability": (
        "data['rollout_log_probs'][2][0] = -0.25",
        r'"rollout_log_probs"\[2\] \(.*\) is -0\.25 at position 0, where it was given -\d',
    ),
    "more tokens": (
        "data['tokens'][0].append(1)",
        r'"tokens"\[0\] \(sample 0, episode g1/0#0\) has the shape \(\d+,\); \(\d+,\) is wanted',
    ),
    "another length": (
        "data['response_lengths'][1] = 1000",
        r'"response_lengths"\[1\] \(.*\) is 1000; its response has \d+ tokens',
    ),
    "a token that nobody sampled": (
        "data['loss_masks'] = [[1] * len(mask) for mask in data['loss_masks']]",
        r'"loss_masks"\[\d+\] \(.*\) brings in \d+ tokens whose mask was 0',
    ),
    "half a token": (
        "data['loss_masks'][0][0] = 0.5",
        r'"loss_masks"\[0\] \(.*\) holds 0\.5; 0 and 1 are wanted',
    ),
    "a reward that is no number": (
        "data['rewards'][0] = {'score': 1}",
        r'"rewards"\[0\] \(.*\) is .*; a number is wanted',
    ),
    "a reward that is not finite": (
        "data['rewards'][0] = float('nan')",
        r'"rewards"\[0\] \(.*\) is nan; a reward must be',
    ),
    "two rewards of one episode": (
        "data['rewards'] = list(range(len(samples)))",
        r"the samples of episode g\d/\d#0 have the rewards \d+ and \d+: give all of an episode the",
    ),
    "an unknown sample": (
        "data['sample_indices'][0] = 999",
        r'"sample_indices"\[0\] is 999, and it was given no sample of this index',
    ),
    "a sample twice": (
        "data['sample_indices'] = [0] * len(samples)",
        r'"sample_indices"\[\d\] is 0, and all samples of this index stand before it',
    ),
    "an index that is none": (
        "data['sample_indices'][0] = 'first'",
        r"\"sample_indices\"\[0\] is 'first'; the index of a sample is wanted",
    ),
    "fewer samples by place": (
        "data = {'rewards': data['rewards'][1:]}",
        r'it returned \d+ of \d+ samples: say which by "sample_indices"',
    ),
    "another denominator": (
        "data['rollout_mask_sums'] = [1000000] * len(samples)",
        r'"rollout_mask_sums"\[0\] \(sample 0, .*\) is 1000000; all samples of its episode have',
    ),
    "the denominator of a segment": (
        "data['rollout_mask_sums'] = [sum(mask) for mask in data['loss_masks']]",
        r'"rollout_mask_sums"\[\d+\] \(sample \d+, .*\) is \d+; all samples of its episode have',
    ),
    "advantages": (
        "data['advantages'] = [5.0] * len(samples)",
        r'it returned "advantages", which the learner makes after .* --rollout-data-postprocess-',
    ),
    "returns": (
        "data['returns'] = [5.0] * len(samples)",
        r'it returned "returns", which the learner makes after .* --rollout-data-postprocess-',
    ),
    "a segment of two without tokens": (
        TORN,
        r"it returned some of the samples of index \d+, which are the segments of episode g\d/\d#0",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_answer_is_told_with_function_sample_and_position(
    fault: str, tmp_path: Path
) -> None:
    body, said = FAULTS[fault]
    place = r"--custom-convert-samples-to-train-data-path \S+mine0\.py"
    with pytest.raises(HookError, match=rf"^{place}: {said}.*: mine \(.*mine0\.py:3\)$"):
        train(written(tmp_path, body))


def test_tokens_that_it_changes_in_place_are_not_forged(tmp_path: Path) -> None:
    """It is held against what was played, not against what it left in the samples."""
    body = "samples[0].tokens[0] += 1\ndata['tokens'][0] = samples[0].tokens"
    with pytest.raises(HookError, match=r'"tokens"\[0\] \(.*\) is \d+ at position 0'):
        train(written(tmp_path, body))


def test_a_view_does_not_run_it() -> None:
    assert shown_algorithm(RunConfig(**of("noted"))) is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--custom-reward-post-process-path mine:post", "what episodes earned as well; call that"),
        ("--disable-rewards-normalization", "give one of these alone"),
        ("--loss-type sft_loss --prompt-data rows.jsonl", "sft_loss imitates dialogues"),
    ],
)
def test_flags_beside_which_it_means_nothing_are_refused(flags: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(["--custom-convert-samples-to-train-data-path", "mine:f", *flags.split()], "train")


def test_rewards_by_turn_are_refused_beside_it() -> None:
    cfg = RunConfig(reward_level="turn", **of("noted"))
    with pytest.raises(ConfigError, match=r"--reward-level turn: .* does not know of turns"):
        check_algorithm(cfg)


def test_leases_tell_the_rows_of_their_tasks_for_it() -> None:
    settings = [
        BufferSettings.from_config(RunConfig(**flags), "ipc://nowhere", SamplingParams())
        for flags in ({}, of("noted"))
    ]
    assert [each.tells_rows for each in settings] == [False, True]
