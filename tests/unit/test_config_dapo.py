"""`--preset dapo`: the paper's values under the user's own, at the sizes of the run."""

from typing import Any

import pytest

from agentrl.config.command_line import read_flags
from agentrl.config.dapo import VALUES, most_sampled, sizes
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import layered, parse
from agentrl.config.run import RunConfig


def resolve(*argv: str) -> tuple[RunConfig, list[str]]:
    return layered(read_flags(["--preset", "dapo", *argv]), "train_async")


@pytest.mark.parametrize(
    ("values", "longest"),
    [
        ({"prompt_data": "rows", "rollout_max_response_len": 20480}, 20480),
        ({"env": "single-turn", "rollout_max_response_len": 64, "max_turns": 3}, 64),
        ({"env": "mine", "rollout_max_response_len": 64, "max_turns": 3}, 192),
        ({"env": "mine", "rollout_max_response_len": 64, "rollout_max_context_len": 100}, 100),
        ({"env": "mine"}, 16 * 1024),
    ],
)
def test_an_episode_samples_at_most_its_turns_within_its_context(
    values: dict[str, Any], longest: int
) -> None:
    assert most_sampled(values) == longest


def test_vcpo_is_a_preset_too() -> None:
    config, notes = layered(read_flags(["--preset", "vcpo", "--tis-clip", "4"]), "train_async")
    assert notes[0].startswith("preset vcpo: ")
    assert (config.advantage_estimator, config.tis_level, config.tis_clip) == (
        "opob",
        "sequence",
        4,
    )
    assert config.scale_lr_by_ess


@pytest.mark.parametrize(
    ("flag", "lost", "why"),
    [
        (
            "--use-rollout-logprobs",
            "--tis-level sequence, --tis-clip 8, --scale-lr-by-ess",
            "there is no pi_prox / mu under --use-rollout-logprobs",
        ),
        ("--no-use-tis", "--tis-level sequence, --tis-clip 8", "no token is weighted"),
    ],
)
def test_a_note_says_what_a_flag_takes_from_a_preset(flag: str, lost: str, why: str) -> None:
    argv = ["--preset", "vcpo", flag, "--device", "cpu"]
    notes = parse(argv, "train_async").notes
    told = [note.partition(": ") for note in notes if note.startswith("preset vcpo without ")]
    flags = [flags.removeprefix("preset vcpo without ") for flags, _, _ in told]
    assert ", ".join(flags) == lost
    assert any(said.startswith(why) for _, _, said in told)


@pytest.mark.parametrize(
    "argv",
    [
        ["--preset", "vcpo"],
        ["--preset", "vcpo", "--eval-only"],
        ["--preset", DEFAULT, "--use-rollout-logprobs"],
        ["--use-rollout-logprobs"],
    ],
)
def test_nothing_is_said_of_a_whole_preset_another_mode_or_the_default_job(argv: list[str]) -> None:
    notes = parse([*argv, "--device", "cpu"], "train_async").notes
    assert not any(" without --" in note for note in notes if note.startswith("preset "))


def test_the_papers_own_run_has_the_papers_numbers() -> None:
    found = sizes(
        {"prompt_data": "x", "rollout_max_response_len": 20480, "rollout_batch_size": 512}
    )
    assert found == {
        "n_samples_per_prompt": 16,
        "num_steps_per_rollout": 16,
        "overlong_max_length": 20480,
        "overlong_buffer_length": 4096,
    }


@pytest.mark.parametrize(("batch", "steps"), [(512, 16), (24, 8), (7, 1)])
def test_steps_share_the_groups_of_an_iteration(batch: int, steps: int) -> None:
    assert sizes({"rollout_batch_size": batch})["num_steps_per_rollout"] == steps


def test_it_lies_over_the_default_job_where_no_model_data_or_environment_is_named() -> None:
    config, notes = resolve()
    below = PRESETS[DEFAULT].values
    assert notes[0].startswith("preset dapo: ")
    assert notes[1].startswith(f"preset {DEFAULT} lies under it: ")
    assert (config.preset, config.env, config.lr) == ("dapo", below["env"], below["lr"])
    assert config.num_steps_per_rollout == below["num_steps_per_rollout"]
    assert (config.overlong_max_length, config.overlong_buffer_length) == (3 * 64, 38)
    for name, value in VALUES.items():
        assert getattr(config, name) == value


def test_flags_and_the_size_of_a_run_lie_above_it() -> None:
    config, notes = resolve(
        "--env", "mine", "--overlong-max-length", "50", "--eps-clip-high", "0.5"
    )
    assert not any(DEFAULT in note for note in notes)
    assert (config.overlong_max_length, config.overlong_buffer_length) == (50, 10)
    assert (config.eps_clip, config.eps_clip_high, config.n_samples_per_prompt) == (0.2, 0.5, 16)


def test_it_can_run_and_says_where_rewards_begin_to_fall() -> None:
    notes = parse(["--preset", "dapo", "--device", "cpu"], "train_async").notes
    assert any(note.startswith("the reward of an episode falls from 154 sampled") for note in notes)
    config = parse(["--preset", "dapo", "--eval-only", "--device", "cpu"], "train_async").config
    assert config.overlong_buffer_length is None
