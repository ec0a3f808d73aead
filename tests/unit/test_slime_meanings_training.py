"""Flags of slime's scripts that say how groups become steps mean what they mean there."""

import statistics

import pytest
import torch

from agentrl.actors.group_scoring import FILTER
from agentrl.actors.slime_filter import OfSamples
from agentrl.algorithms.load import load_algorithm
from agentrl.config.command_line import Program
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.learner.megatron.schedule import LearningRate
from agentrl.learner.packing import first_fit_decreasing
from agentrl.learner.plan import StepPlan, plan_iteration
from agentrl.serving.buckets import make_buckets
from agentrl.shipped import FILTERS
from agentrl.types import Fate, Task
from agentrl.user_code import load
from agentrl.wire.messages import LeaseRequest
from tests.unit.test_buffer_over_sampling import full_with, judge, on_policy
from tests.unit.test_learner_batch import header_of

SLIMES_FILTER = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def run(*argv: str, program: Program = "train_async") -> RunConfig:
    return parse(["--device", "cpu", *argv], program).config


def steps_of(config: RunConfig, groups: int, ranks: int = 1) -> tuple[StepPlan, ...]:
    """The steps of an iteration of so many groups of two episodes."""
    header = header_of([[[2], [3]]] * groups)
    return plan_iteration(header, load_algorithm(config), ranks)


@pytest.mark.parametrize("flags", [("--num-steps-per-rollout", "2"), ("--global-batch-size", "8")])
def test_an_optimizer_step_takes_whole_groups_of_a_global_batch(flags: tuple[str, ...]) -> None:
    config = run("--rollout-batch-size", "8", "--n-samples-per-prompt", "2", *flags)
    plans = steps_of(config, groups=8)
    episodes = [{planned.row.episode for planned in plan.shards[0]} for plan in plans]
    assert [len(step) for step in episodes] == [8, 8]
    groups = [{episode.group for episode in step} for step in episodes]
    assert not groups[0] & groups[1]


def test_ranks_of_a_step_have_as_many_tokens() -> None:
    config = run("--balance-data", "--advantage-estimator", "grpo")
    lengths = [[9], [1], [2], [3], [4], [5], [6], [8]]  # and a prompt of 2 tokens to each
    (plan,) = plan_iteration(header_of([lengths]), load_algorithm(config), 2)
    sums = [sum(planned.row.meta.num_tokens for planned in shard) for shard in plan.shards]
    assert sum(sums) == 38 + 2 * 8
    assert abs(sums[0] - sums[1]) <= 1


def test_micro_batches_are_filled_to_the_tokens_of_a_gpu_and_a_longer_sample_is_alone() -> None:
    config = run("--use-dynamic-batch-size", "--max-tokens-per-gpu", "2048")
    bins = first_fit_decreasing([3000, 1000, 1000, 1500, 500], config.micro_batch_tokens)
    assert bins == [[0], [3, 4], [1, 2]]


def test_advantages_are_rewards_over_their_unbiased_deviation_in_the_group() -> None:
    rewards = [0.0, 1.0, 0.25, 1.0]
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    grpo = load_algorithm(run("--advantage-estimator", "grpo"))
    wanted = [(reward - mean) / (deviation + 1e-6) for reward in rewards]
    assert grpo.values(rewards) == pytest.approx(wanted)


def test_a_constant_rate_is_the_same_in_every_step_and_is_what_no_flag_says() -> None:
    for words in (["--lr-decay-style", "constant"], []):
        rate = LearningRate(run("--lr", "1e-6", "--lr-warmup-iters", "0", *words), None)
        assert {rate.after(step) for step in range(100)} == {1e-6}


def test_a_push_goes_in_pieces_of_the_size_of_a_buffer() -> None:
    config = run("--update-weight-buffer-size", "4000")
    weights = {f"w{i}": torch.zeros(300) for i in range(5)} | {"large": torch.zeros(2000)}
    pieces = list(make_buckets(weights.items(), config.update_weight_buffer_size))
    assert [piece.names for piece in pieces] == [["w0", "w1", "w2"], ["w3", "w4"], ["large"]]
    assert run().update_weight_buffer_size == 512 * 1024**2


# ---- dynamic sampling ----------------------------------------------------------------------------


def test_slimes_filter_drops_groups_of_equal_rewards() -> None:
    assert SLIMES_FILTER in FILTERS.theirs
    config = run("--dynamic-sampling-filter-path", SLIMES_FILTER)
    keep = load(FILTER, str(config.dynamic_sampling_filter_path))
    assert keep is not None
    assert not isinstance(keep, OfSamples)
    task = Task("t", {})
    assert keep([0.0, 1.0], task) == (True, "")
    assert keep([1.0, 1.0], task) == (False, "zero_std_1")
    assert keep([0.0, 0.0], task) == (False, "zero_std_0")


def test_on_policy_more_tasks_are_begun_than_are_trained_and_the_rest_is_given_up() -> None:
    words = ["--rollout-batch-size", "2", "--n-samples-per-prompt", "2"]
    config = run(*words, "--over-sampling-batch-size", "4", program="train")
    b = on_policy(over_sampling_batch_size=config.over_sampling_batch_size)
    b.say("learner.1", LeaseRequest(1))
    full_with(b, 2, 4)
    assert b.core.state.minted == 4
    assert b.core.state.leases[1].mints == (2, 4)
    assert b.core.state.fates == {Fate.SURPLUS: 2}


def test_on_policy_a_filtered_group_makes_room_for_another() -> None:
    b = on_policy(over_sampling_batch_size=4)
    b.say("learner.1", LeaseRequest(1))
    b.supply()
    judge(b, keep={2})
    assert (b.core.state.fates, b.core.state.leases) == ({Fate.FILTERED: 3}, {})
    b.supply()
    assert b.core.state.minted == 4 + 3
