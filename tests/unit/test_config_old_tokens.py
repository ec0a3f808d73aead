"""What a run with old tokens has by default: `agentrl/config/old_tokens.py`."""

from pathlib import Path

import pytest

from agentrl.config.command_line import Program, read_flags
from agentrl.config.old_tokens import AGE, REGION
from agentrl.config.resolve import layered
from agentrl.config.run import RunConfig
from benchmarks import staleness

OLD = ["--max-staleness", str(AGE)]


def resolve(*argv: str, program: Program = "train_async") -> tuple[RunConfig, list[str]]:
    config, notes = layered(read_flags(list(argv)), program)
    return config, [note for note in notes if "--trust-region" in note]


@pytest.mark.parametrize(
    "flags",
    [
        OLD,
        ["--async-buffer-size", str(AGE)],
        ["--update-weights-interval", str(AGE), "--async-buffer-size", "1"],
        [*OLD, "--advantage-estimator", "rloo"],
    ],
)
def test_tokens_the_policy_has_left_are_dropped_where_they_may_be_old(flags: list[str]) -> None:
    config, (note,) = resolve(*flags)
    assert config.trust_region == [REGION]
    assert note.startswith(
        f"tokens that are {AGE} iterations old may be trained, so --trust-region"
    )


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--async-buffer-size", "4"],
        ["--max-staleness", str(AGE - 1), "--async-buffer-size", str(AGE)],
        [*OLD, "--preset", "vcpo"],
        [*OLD, "--tis-level", "sequence"],
        [*OLD, "--loss-type", "sft_loss"],
        [*OLD, "--eval-only"],
    ],
)
def test_nothing_is_dropped_where_they_are_young_or_somebody_has_spoken(flags: list[str]) -> None:
    config, notes = resolve(*flags)
    assert config.trust_region == []
    assert notes == []


@pytest.mark.parametrize(
    "flags",
    [
        ["--use-tis"],
        ["--no-use-tis"],
        ["--tis-clip", "5"],
        ["--use-rollout-logprobs"],
        ["--trust-region", "m2po"],
    ],
)
def test_a_choice_that_held_no_run_up_is_told_what_it_takes_the_place_of(flags: list[str]) -> None:
    config, (note,) = resolve(*OLD, *flags)
    name = flags[0].replace("--no-", "--")
    assert REGION not in config.trust_region
    assert f"--trust-region {REGION} is not on, because a correction is chosen ({name})" in note


def test_what_somebody_says_takes_its_place() -> None:
    config, notes = resolve(*OLD, "--trust-region", "dppo:0.3")
    assert (config.trust_region, notes) == (["dppo:0.3"], [])


def test_an_arm_of_the_study_has_its_own_correction_alone() -> None:
    for name, arm in staleness.ARMS.items():
        _, *flags = staleness.command(name, 16, 1, Path("/runs/x"))
        config, _ = resolve(*flags)
        assert config.trust_region == (
            [arm.flags[1]] if arm.flags[:1] == ("--trust-region",) else []
        )
