"""Checks of a run's log-probabilities: engine against learner, reference model against the first
weights, and old tokens against the policy."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentrl.config.device_defaults import for_device
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import HealthError
from agentrl.learner.health import (
    MAX_CORRECTED_DRIFT,
    MAX_DRIFT,
    MAX_START_KL,
    MIN_DRIFT_TOKENS,
    PATIENCE,
    check_logprobs,
)
from agentrl.learner.metrics import LogprobDiff
from agentrl.learner.tolerance import BFLOAT16, FLOAT32, Tolerance, tolerance_of
from benchmarks import staleness
from benchmarks.curves import Curve
from tests.unit.health_runs import CFG, SOUND, play, sound

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


# ---- drift ---------------------------------------------------------------------------------------

OLD = sound({"train/log_ratio_m2/age_0": 1.0, "train/log_ratio_m2/age_3": 0.2})


def test_old_tokens_far_from_the_policy_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    play([OLD] * (PATIENCE - 1))
    assert not caplog.records
    play([OLD] * (3 * PATIENCE))
    (record,) = caplog.records
    assert "tokens of age 3 is 0.2 nats^2" in record.getMessage()
    assert "Give --trust-region negative; then lower --max-staleness or --lr" in record.getMessage()


def test_tokens_of_the_policy_itself_or_near_it_are_no_drift(
    caplog: pytest.LogCaptureFixture,
) -> None:
    near = {**OLD, "train/log_ratio_m2/age_3": MAX_DRIFT}
    play([near] * (3 * PATIENCE))
    play([OLD] * (PATIENCE - 1) + [near] + [OLD] * (PATIENCE - 1))
    assert not caplog.records


def test_an_iteration_without_tokens_of_an_age_does_not_end_its_streak(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play([OLD, SOUND] * (PATIENCE - 1))
    assert not caplog.records
    play([OLD, SOUND] * PATIENCE)
    assert "tokens of age 3 is 0.2 nats^2" in caplog.text


@pytest.mark.parametrize("age", [3, 8])
def test_a_few_tokens_of_an_age_do_not_speak_for_it(
    age: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The last metric by age is of all older tokens too."""
    cfg = replace(CFG, max_staleness=10)
    counts: Any = [1000] + [0] * (age - 1) + ([MIN_DRIFT_TOKENS - 1] if age < 8 else [32, 0, 31])
    found: Any = sound({f"train/log_ratio_m2/age_{age}": 0.2}) | {"train/age_histogram": counts}
    play([found] * (3 * PATIENCE), cfg)
    assert not caplog.records
    counts[age] += 1
    play([found] * PATIENCE, cfg)
    assert f"tokens of age {age} is 0.2 nats^2" in caplog.text


def test_ages_that_rise_from_push_to_push_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """As under --update-weights-interval 8: the first iterations after a push are near it."""
    interval = 8
    cycle = [sound({f"train/log_ratio_m2/age_{age}": 0.02 * age}) for age in range(interval)]
    play(cycle * (PATIENCE - 1))
    assert not caplog.records
    play(cycle * PATIENCE)
    (record,) = caplog.records
    assert "tokens of age 6 is 0.12 nats^2" in record.getMessage()
    assert "above 0.1 for 8 iterations with tokens of that age" in record.getMessage()


@pytest.mark.parametrize(
    "chosen", [{"trust_region": ["negative:0.5"]}, {"tis_level": "sequence"}], ids=str
)
def test_a_correction_that_held_bears_more_and_is_not_advised_again(
    chosen: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    cfg = replace(CFG, **chosen)
    borne = {**OLD, "train/log_ratio_m2/age_3": MAX_CORRECTED_DRIFT}
    play([borne] * (3 * PATIENCE), cfg)
    assert not caplog.records
    play([{**borne, "train/log_ratio_m2/age_3": 2 * MAX_CORRECTED_DRIFT}] * PATIENCE, cfg)
    (record,) = caplog.records
    assert record.getMessage().endswith("that age. Lower --max-staleness or --lr (docs/async.md)")


def told(run: Curve, caplog: pytest.LogCaptureFixture) -> bool:
    """Whether a run of the study, played again, is told of its drift."""
    _, *flags = staleness.command(run.arm, run.lag, run.seed, Path("runs/one"))
    caplog.clear()
    play(
        [{**OLD, "train/log_ratio_m2/age_3": each} for each in run.m2],
        parse(flags, "train_async").config,
    )
    return "the policy moves fast" in caplog.text


def test_of_the_study_all_runs_that_fell_are_told_and_none_that_held(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = [c for c in staleness.read_curves(staleness.KEPT) if len(c.m2) >= PATIENCE]
    fell = [run for run in runs if run.arm in ("naive", "truncate", "icepop")]
    held = [run for run in runs if run.arm in ("negative", "sequence")]
    assert min(len(fell), len(held)) > 15
    assert [run for run in fell if not told(run, caplog)] == []
    assert [run for run in held if told(run, caplog)] == []
