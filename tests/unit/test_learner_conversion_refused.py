"""What a function of the user's may not make of the samples of a lease."""

from pathlib import Path

import pytest

from agentrl.algorithms.load import check_algorithm
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, HookError
from tests.unit.conversion_ground import of, train, written

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
