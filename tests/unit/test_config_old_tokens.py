"""What a run with old tokens has by default: `agentrl/config/old_tokens.py`."""

from pathlib import Path

import pytest

from agentrl.config.command_line import Program, read_flags
from agentrl.config.corrections import about_corrections
from agentrl.config.old_tokens import AGE, FAR, LEVEL, REGION
from agentrl.config.resolve import layered
from agentrl.config.run import RunConfig
from agentrl.shipped import ALGORITHMS
from benchmarks import staleness

ROOT = Path(__file__).resolve().parents[2]
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
    assert (config.trust_region, config.tis_level) == ([REGION], "token")
    assert note.startswith(
        f"tokens that are {AGE} iterations old may be trained, so --trust-region"
    )


def within_noise(lag: int) -> str:
    """What the page of the study says of arms at a lag."""
    page = (ROOT / "docs" / "results" / "staleness.md").read_text(encoding="utf-8")
    part = page.partition(f"\n## Lag {lag}\n")[2].partition("\n## ")[0]
    (line,) = (line for line in part.splitlines() if line.startswith("- Shown to be within noise"))
    return line


@pytest.mark.parametrize("estimator", sorted(ALGORITHMS.places))
def test_the_weight_is_that_of_a_sequence_where_they_may_be_very_old(estimator: str) -> None:
    flags = ["--max-staleness", str(FAR), "--advantage-estimator", estimator]
    config, (note,) = resolve(*flags)
    assert (config.trust_region, config.tis_level) == ([REGION], LEVEL)
    assert f"--tis-level {LEVEL} are on, the default from {FAR} iterations on" in note
    assert not [*about_corrections(config)]


def test_what_is_the_default_is_an_arm_of_the_study_within_noise() -> None:
    for lag, arm in ((AGE, "negative"), (FAR, "negative-sequence")):
        _, *flags = staleness.command(arm, lag, 1, Path("/runs/x"))
        measured, _ = resolve(*flags)
        config, _ = resolve("--max-staleness", str(lag))
        named = ("trust_region", "tis_level", "tis_mode", "tis_clip", "use_tis")
        assert [getattr(config, name) for name in named] == [
            getattr(measured, name) for name in named
        ]
        assert f"`{arm}`" in within_noise(lag)


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
        at = arm.flags.index("--trust-region") + 1 if "--trust-region" in arm.flags else None
        assert config.trust_region == ([] if at is None else [arm.flags[at]])
