"""Each check stops the run it is meant for, says why, and leaves sound runs alone."""

from collections.abc import Iterable, Mapping

import pytest

from agentrl.algorithms.load import load_algorithm
from agentrl.config.device_defaults import for_device
from agentrl.config.run import RunConfig
from agentrl.errors import HealthError
from agentrl.learner.health import (
    MAX_DRIFT,
    MAX_START_KL,
    MIN_ENTROPY,
    MIN_EPISODES,
    PATIENCE,
    Health,
    check_logprobs,
)
from agentrl.learner.metrics import LogprobDiff
from agentrl.learner.tolerance import BFLOAT16, FLOAT32, Tolerance, tolerance_of

CFG = RunConfig(n_samples_per_prompt=8, rollout_batch_size=16)
NO_TOKENS = LogprobDiff(0.0, 0.0, 0)
#: An iteration of the default job, in the middle of it.
SOUND = {
    "rollout/num_groups": 16,
    "rollout/num_episodes": 128,
    "rollout/reward_mean": 0.4,
    "rollout/reward_std": 0.49,
    "rollout/zero_std_group_share": 0.56,
    "rollout/turns_mean": 1.8,
    "rollout/tool_use": 0.6,
    "rollout/tool_calls": 0.8,
    "rollout/tool_errors": 0.0,
    "rollout/truncated": 0.0,
    "train/num_steps": 2,
    "train/num_tokens": 1500,
    "train/masked_token_share": 0.0,
    "train/entropy": 0.16,
    "train/mismatch_kl/age_0": -1.6e-9,
}
#: Groups of equal rewards: nothing is computed, so there is nothing to tell of it.
IDLE = {
    "rollout/reward_mean": 0.0,
    "rollout/reward_std": 0.0,
    "rollout/zero_std_group_share": 1.0,
    "train/num_tokens": 0,
    "train/masked_token_share": None,
    "train/entropy": None,
}
NO_CALL = {"rollout/tool_use": 0.0, "rollout/tool_calls": 0.0, "rollout/turns_mean": 1.0}


def sound(changes: Mapping[str, float | None] = {}) -> dict[str, float]:
    """The metrics of a sound iteration, changed; None leaves one out."""
    return {name: value for name, value in {**SOUND, **changes}.items() if value is not None}


def play(
    iterations: Iterable[Mapping[str, float]],
    cfg: RunConfig = CFG,
    *,
    first: int = 1,
    on_policy: LogprobDiff = NO_TOKENS,
) -> Health:
    """A run's health after these iterations."""
    health = Health(load_algorithm(cfg))
    for number, metrics in enumerate(iterations, first):
        health.check(number, metrics, on_policy)
    return health


# ---- sound runs ---------------------------------------------------------------------------------


def test_the_curves_of_the_default_job_trip_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def at(share: float) -> dict[str, float]:
        return sound(
            {
                "train/entropy": 0.16 - 0.12 * share,
                "rollout/reward_mean": 0.35 + 0.42 * share,
                "rollout/zero_std_group_share": 0.52 + 0.14 * share,
                "rollout/tool_calls": 0.6 + 0.6 * share,
            }
        )

    play((at(i / 100) for i in range(100)), on_policy=LogprobDiff(3e-7, 2e-6, 700))
    assert caplog.records == []


def test_a_tiny_run_may_pass_its_iterations_without_any_signal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiny = {"rollout/num_episodes": 32, "train/entropy": 1e-4}
    play([sound(IDLE | NO_CALL | tiny)] * 6)
    play([sound(tiny)] * 6)
    assert caplog.records == []


def test_single_episodes_with_plain_rewards_trip_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cfg = RunConfig(disable_rewards_normalization=True)
    single = {"rollout/zero_std_group_share": 1.0, "rollout/num_episodes": 64}
    play([sound(single)] * 30, cfg)
    # every reward is 1, and so is every advantage
    play([sound(single | {"rollout/reward_mean": 1.0, "rollout/reward_std": 0.0})] * 30, cfg)
    assert caplog.records == []


def test_metrics_that_are_absent_are_not_judged(caplog: pytest.LogCaptureFixture) -> None:
    play([{}] * 30)
    play([{"train/num_tokens": 10.0, "train/entropy": 0.0}] * 30)
    assert caplog.records == []


def test_a_supervised_run_is_not_judged(caplog: pytest.LogCaptureFixture) -> None:
    supervised = {"rollout/num_episodes": 256, "rollout/turns_mean": 1.0, "train/num_tokens": 0}
    play([sound(IDLE | NO_CALL | supervised)] * 30, RunConfig(loss_type="sft_loss"))
    assert caplog.records == []


# ---- engine and learner -------------------------------------------------------------------------


BF16 = RunConfig(megatron={"bf16": True})
EXACT = {"bf16": False}


@pytest.mark.parametrize("tolerance", [FLOAT32, BFLOAT16])
def test_sound_numerics_pass_and_so_does_an_iteration_without_on_policy_tokens(
    tolerance: Tolerance, caplog: pytest.LogCaptureFixture
) -> None:
    check_logprobs(1, LogprobDiff(tolerance.note_diff, 3.0, 100), tolerance)
    check_logprobs(1, LogprobDiff(5.0, 5.0, 0), tolerance)
    assert caplog.records == []


@pytest.mark.parametrize("mean", [0.005, 0.011, 0.036, 0.041])
def test_what_was_measured_of_sound_pairs_in_bf16_passes_without_a_word(
    mean: float, caplog: pytest.LogCaptureFixture
) -> None:
    """By `benchmarks/precision.py`, and by others of SGLang beside Megatron."""
    play([sound()], BF16, on_policy=LogprobDiff(mean, 0.7, 4000))
    assert caplog.records == []


def test_a_larger_difference_in_bf16_is_told(caplog: pytest.LogCaptureFixture) -> None:
    play([sound()], BF16, on_policy=LogprobDiff(0.06, 0.7, 4000))
    assert "differ more than most up to iteration 1" in caplog.text
    assert "0.06 in the mean (limit 0.1" in caplog.text


def test_in_float32_a_difference_of_rounding_in_bf16_stops_the_run() -> None:
    with pytest.raises(HealthError, match=r"0\.0078 in the mean \(limit 0\.001 in float32\)"):
        play([sound()], on_policy=LogprobDiff(0.0078, 0.1, 4000))


@pytest.mark.parametrize(
    ("config", "tolerance"),
    [
        (RunConfig(), FLOAT32),
        (for_device(RunConfig(), "cpu"), FLOAT32),
        (for_device(RunConfig(), "cuda"), BFLOAT16),
        (for_device(RunConfig(megatron={"bf16": False}), "cuda"), BFLOAT16),
        (for_device(RunConfig(megatron=EXACT, sglang={"dtype": "float32"}), "cuda"), BFLOAT16),
        (for_device(RunConfig(megatron=EXACT, sglang={"dtype": "float32"}), "cpu"), FLOAT32),
        (RunConfig(sglang={"dtype": "bfloat16"}), BFLOAT16),
        (RunConfig(sglang={"dtype": "auto"}), BFLOAT16),
        (RunConfig(sglang={"quantization": "fp8"}), BFLOAT16),
        (RunConfig(sglang={"kv_cache_dtype": "fp8_e4m3"}), BFLOAT16),
        (BF16, BFLOAT16),
    ],
)
def test_the_less_exact_of_engine_and_learner_sets_the_tolerance(
    config: RunConfig, tolerance: Tolerance
) -> None:
    assert tolerance_of(config) is tolerance


def test_a_disagreement_stops_the_run_with_its_numbers_and_likely_causes() -> None:
    pattern = r"iteration 1: .* 256 on-policy .* 0\.25 .* 1\.5 .*causes"
    with pytest.raises(HealthError, match=pattern):
        check_logprobs(1, LogprobDiff(0.25, 1.5, 256), BFLOAT16)
    with pytest.raises(HealthError, match=pattern):
        play([sound()], on_policy=LogprobDiff(0.25, 1.5, 256))


def test_a_few_tokens_are_judged_with_those_of_later_iterations() -> None:
    health = play([sound()] * 2)
    for number in (3, 4, 5):
        health.check(number, sound(), LogprobDiff(0.25, 1.5, 64))
    with pytest.raises(HealthError, match=r"up to iteration 6: .* 256 on-policy .* 0\.25 in"):
        health.check(6, sound(), LogprobDiff(0.25, 1.0, 64))


def test_engines_that_agreed_once_are_checked_again() -> None:
    """One may be given other weights at any time."""
    health = play([sound()] * 3, on_policy=LogprobDiff(1e-6, 1e-5, 4000))
    health.check(4, sound(), LogprobDiff(0.25, 1.5, 200))
    with pytest.raises(HealthError, match=r"up to iteration 5: .* 400 on-policy"):
        health.check(5, sound(), LogprobDiff(0.25, 1.5, 200))


def test_few_tokens_that_differ_much_stop_the_run() -> None:
    on_policy = LogprobDiff(FLOAT32.note_diff, 6.0, 9000)
    with pytest.raises(HealthError, match=r"iteration 1: the KL .* 0\.2 nats .* by 6 at most"):
        play([sound({"train/mismatch_kl/age_0": 0.2})], on_policy=on_policy)
    play([sound({"train/mismatch_kl/age_0": FLOAT32.max_kl})], on_policy=on_policy)
    play([sound({"train/mismatch_kl/age_0": None})], on_policy=on_policy)
    # off-policy tokens are meant to differ
    play([sound({"train/mismatch_kl": 3.0, "train/mismatch_kl/age_2": 4.0})], on_policy=on_policy)


def test_a_difference_that_is_no_number_stops_the_run() -> None:
    nan = float("nan")
    with pytest.raises(HealthError, match="is nan in the mean"):
        play([sound()], on_policy=LogprobDiff(nan, nan, 5))
    with pytest.raises(HealthError, match="is nan nats"):
        play([sound({"train/mismatch_kl/age_0": nan})], on_policy=LogprobDiff(0.0, 0.0, 5))


# ---- reference model ----------------------------------------------------------------------------


@pytest.mark.parametrize("kl", [0.3, -0.3, float("nan")])
def test_another_reference_than_the_first_weights_stops_the_run(kl: float) -> None:
    pattern = rf"reference model is {kl:g} nats .* iteration 1 .*causes.*--use-kl-loss"
    with pytest.raises(HealthError, match=pattern):
        play([sound({"train/kl_first": kl})])


def test_the_reference_may_round_and_later_differ() -> None:
    play([sound({"train/kl_first": MAX_START_KL, "train/kl_loss": 0.3})])
    play([sound({"train/kl_first": 0.0}), sound({"train/kl_first": 0.3})])
    # a learner that came back trains other weights than the run began with
    play([sound({"train/kl_first": 0.3})], first=7)


def test_another_runs_weights_may_lie_far_from_the_reference() -> None:
    play([sound({"train/kl_first": 0.3})], RunConfig(load="runs/other/recovery"))


# ---- where rewards come from --------------------------------------------------------------------


def test_a_reward_from_outside_the_sampled_text_stops_the_run_at_once() -> None:
    pattern = r"outside the sampled text, seen in iteration 2: .*\(3 times.*`score`"
    with pytest.raises(HealthError, match=pattern):
        play([sound({"rollout/reward_mismatch": 0.0}), sound({"rollout/reward_mismatch": 3.0})])


# ---- advantages ---------------------------------------------------------------------------------


def test_a_run_that_never_has_an_advantage_is_stopped() -> None:
    idle = sound(IDLE | {"rollout/truncated": 0.25})
    play([idle] * (PATIENCE - 1))
    pattern = (
        r"no episode had an advantage for 8 iterations \(1024 episodes\) up to iteration 8"
        r".*mean reward 0\).*25% .*causes.*--n-samples-per-prompt \(8 now\)"
    )
    with pytest.raises(HealthError, match=pattern):
        play([idle] * PATIENCE)


def test_small_iterations_are_given_more_of_them() -> None:
    idle = sound(IDLE | {"rollout/num_episodes": 32})
    play([idle] * (MIN_EPISODES // 32 - 1))
    with pytest.raises(HealthError, match=r"16 iterations \(512 episodes\)"):
        play([idle] * (MIN_EPISODES // 32))


def test_rewards_that_differ_between_tasks_alone_are_no_signal() -> None:
    with pytest.raises(HealthError, match="equal within every group"):
        play([sound(IDLE | {"rollout/reward_mean": 0.5, "rollout/reward_std": 0.5})] * PATIENCE)


def test_equal_rewards_are_no_signal_under_a_loss_with_a_kl_term() -> None:
    cfg = RunConfig(n_samples_per_prompt=8, use_kl_loss=True, kl_loss_coef=0.001)
    computed = {"train/num_tokens": 1500, "train/masked_token_share": 0.0, "train/entropy": 0.2}
    with pytest.raises(HealthError, match="no episode had an advantage"):
        play([sound(IDLE | computed)] * PATIENCE, cfg)


def test_equal_rewards_of_which_length_took_a_part_are_a_signal() -> None:
    cfg = RunConfig(
        n_samples_per_prompt=8,
        use_kl_loss=True,
        overlong_max_length=20,
        overlong_buffer_length=10,
    )
    computed = {"train/num_tokens": 1500, "train/masked_token_share": 0.0, "train/entropy": 0.2}
    play([sound(IDLE | computed | {"rollout/overlong_penalty": 0.2})] * PATIENCE, cfg)
    with pytest.raises(HealthError, match="no episode had an advantage"):
        play([sound(IDLE | computed | {"rollout/overlong_penalty": 0.0})] * PATIENCE, cfg)


def test_the_filter_of_what_was_cut_off_is_named_where_nothing_was_trained() -> None:
    cut = IDLE | {"rollout/truncated": 1.0}
    with pytest.raises(HealthError, match="a limit, and --overlong-filter trains none of those"):
        play([sound(cut)] * PATIENCE, RunConfig(n_samples_per_prompt=8, overlong_filter=True))


def test_plain_rewards_that_are_all_zero_are_no_signal() -> None:
    cfg = RunConfig(disable_rewards_normalization=True)
    with pytest.raises(HealthError, match="no episode had an advantage"):
        play([sound(IDLE)] * PATIENCE, cfg)


def mine(micro_batch: object, logprobs: object, entropy: object) -> None:
    """Is never called here."""


MINE = f"{__name__}:mine"


def test_a_loss_of_the_users_needs_no_rewards(caplog: pytest.LogCaptureFixture) -> None:
    computed = {"train/num_tokens": 1500, "train/masked_token_share": 0.0}
    play(
        [sound(IDLE | computed)] * 30,
        RunConfig(loss_type="custom_loss", custom_loss_function_path=MINE),
    )
    assert caplog.records == []


def test_tokens_that_are_all_masked_or_lost_had_an_advantage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play([sound({"train/num_tokens": 0, "train/masked_token_share": 1.0})] * 30)
    assert caplog.records == []


@pytest.mark.parametrize("seen", [{}, IDLE | {"rollout/reward_mean": 1.0}])
def test_a_run_that_has_shown_a_signal_or_solved_its_tasks_is_warned_once(
    seen: dict[str, float | None], caplog: pytest.LogCaptureFixture
) -> None:
    play([sound(seen), *[sound(IDLE)] * 30])
    assert len(caplog.records) == 1
    assert "no episode had an advantage" in caplog.records[0].getMessage()


def test_tasks_that_are_all_solved_from_the_start_do_not_stop_a_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play([sound(IDLE | {"rollout/reward_mean": 1.0})] * 30)
    assert len(caplog.records) == 1


def test_one_advantage_in_between_begins_the_count_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play([*[sound(IDLE)] * (PATIENCE - 1), sound(), *[sound(IDLE)] * (PATIENCE - 1)])
    assert caplog.records == []


def test_a_learner_that_came_back_is_warned_of_what_it_may_have_seen_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play([sound(IDLE | NO_CALL)] * 30, first=40)
    assert len(caplog.records) == 2


# ---- tools --------------------------------------------------------------------------------------


def test_a_model_that_never_calls_a_tool_is_stopped() -> None:
    play([sound(NO_CALL)] * (PATIENCE - 1))
    pattern = (
        r"has tools and no episode tried to call one for 8 iterations \(1024 episodes\) up to "
        r"iteration 8.*causes.*--chat-format qwen.*--max-tool-calls 0"
    )
    with pytest.raises(HealthError, match=pattern):
        play([sound(NO_CALL)] * PATIENCE)


@pytest.mark.parametrize(
    "tried", [{"rollout/tool_use": 0.01}, {"rollout/tool_errors": 0.1}, {"rollout/tool_calls": 0.1}]
)
def test_an_attempt_counts_as_a_call(
    tried: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    play([sound(NO_CALL | tried)] * 30)
    assert caplog.records == []


@pytest.mark.parametrize(
    "cfg", [RunConfig(max_tool_calls=0), RunConfig(max_turns=1)], ids=["calls", "turns"]
)
def test_a_run_that_may_not_use_its_tools_is_not_asked_for_them(
    cfg: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    play([sound(NO_CALL)] * 30, cfg)
    assert caplog.records == []


def test_an_env_without_tools_is_not_asked_for_them(caplog: pytest.LogCaptureFixture) -> None:
    play([sound(NO_CALL | {"rollout/tool_use": None})] * 30)
    assert caplog.records == []


@pytest.mark.parametrize("first", [{}, NO_CALL | {"rollout/turns_mean": 3.0}])
def test_calls_that_vanish_and_an_env_that_talks_without_them_are_a_warning(
    first: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    rest = first if first else NO_CALL
    play([sound(first), *[sound(rest)] * 30])
    assert len(caplog.records) == 1
    assert "no episode tried to call one" in caplog.records[0].getMessage()


# ---- entropy ------------------------------------------------------------------------------------

NARROW = {"train/entropy": MIN_ENTROPY / 2}


def test_a_policy_that_narrowed_while_its_reward_fell_is_stopped() -> None:
    fallen = [sound(NARROW | {"rollout/reward_mean": 0.1})] * PATIENCE
    play([*[sound()] * PATIENCE, *fallen[1:]])
    pattern = (
        r"below 0\.005 nats a token for 8 iterations .* up to iteration 16 \(last 0\.0025\).*"
        r"8 iterations 0\.1, best 0\.4\. .*causes.*--lr"
    )
    with pytest.raises(HealthError, match=pattern):
        play([*[sound()] * PATIENCE, *fallen])


def test_a_policy_that_narrowed_and_earns_well_is_warned_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play([*[sound()] * PATIENCE, *[sound(NARROW | {"rollout/reward_mean": 0.3})] * 30])
    assert len(caplog.records) == 1
    assert "entropy" in caplog.records[0].getMessage()


def test_a_reward_that_fell_alone_is_no_collapse(caplog: pytest.LogCaptureFixture) -> None:
    lower = {"rollout/reward_mean": 0.01, "train/entropy": MIN_ENTROPY}
    play([*[sound()] * PATIENCE, *[sound(lower)] * 30])
    assert caplog.records == []


def test_rewards_that_were_never_positive_have_no_best_to_fall_from() -> None:
    play([sound(NARROW | {"rollout/reward_mean": -1.0})] * 30)


def test_iterations_without_entropy_neither_count_nor_end_a_streak() -> None:
    narrow = sound(NARROW | {"rollout/reward_mean": 0.01})
    untrained = sound(IDLE | {"rollout/reward_mean": 0.01, "rollout/reward_std": 0.1})
    start = [sound()] * PATIENCE
    play([*start, *[narrow, untrained] * (PATIENCE - 1)])
    with pytest.raises(HealthError, match=r"for 8 iterations .* up to iteration 23"):
        play([*start, *[narrow, untrained] * PATIENCE])


# ---- drift ---------------------------------------------------------------------------------------

OLD = sound({"train/log_ratio_m2/age_0": 1.0, "train/log_ratio_m2/age_3": 0.1})


def test_old_tokens_far_from_the_policy_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    play([OLD] * (PATIENCE - 1))
    assert not caplog.records
    play([OLD] * (3 * PATIENCE))
    (record,) = caplog.records
    assert "tokens of age 3 is 0.1 nats^2" in record.getMessage()
    assert "--trust-region negative" in record.getMessage()


def test_tokens_of_the_policy_itself_or_near_it_are_no_drift(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play([{**OLD, "train/log_ratio_m2/age_3": MAX_DRIFT}] * (3 * PATIENCE))
    play([OLD] * (PATIENCE - 1) + [SOUND] + [OLD] * (PATIENCE - 1))
    assert not caplog.records
