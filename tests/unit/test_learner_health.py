"""Checks of what a run learns from, its rewards, advantages, tool calls and entropy: each stops the
run it is meant for, says why, and leaves sound runs alone."""

import pytest

from agentrl.config.run import RunConfig
from agentrl.errors import HealthError
from agentrl.learner.health import MIN_ENTROPY, MIN_EPISODES, PATIENCE
from agentrl.learner.metrics import LogprobDiff
from tests.unit.health_runs import IDLE, NO_CALL, play, sound

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
        play([sound(NO_CALL)] * PATIENCE, RunConfig(chat_format="qwen"))


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
