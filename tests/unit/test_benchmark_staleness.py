"""The staleness benchmark: its arms, what it takes for a run, its intervals, and its page."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.envs.check.signatures import check_class
from agentrl.envs.registry import load_env
from agentrl.envs.search_r1 import SearchR1Env
from agentrl.errors import DataError
from benchmarks import staleness
from benchmarks.curves import append
from benchmarks.few_questions import NUM_QUESTIONS
from benchmarks.staleness import ARMS, LAST, POINTS, curve_of
from benchmarks.staleness_numbers import BASE, MASKED, NAIVE
from scripts.staleness import staleness_page as page
from tests.unit.default_lines import difference
from tests.unit.staleness_curves import curve

# ---- the arms -----------------------------------------------------------------------------------


def resolved(arm: str, lag: int = 8) -> RunConfig:
    _, *flags = staleness.command(arm, lag, 1, Path("runs/one"))
    return parse(flags, "train_async").config


def test_without_a_correction_the_arms_differ_in_the_lag_alone() -> None:
    assert difference(resolved(BASE), resolved(NAIVE)) == {"num_rollout"}
    assert not resolved(NAIVE).use_tis
    lags = [staleness.command(arm, 8, 1, Path("one"))[0] for arm in (BASE, NAIVE)]
    assert lags == ["0", "8"]


@pytest.mark.parametrize("lag", [8, 16])
@pytest.mark.parametrize("arm", ARMS)
def test_all_score_the_same_iterations_and_nothing_runs_ahead(arm: str, lag: int) -> None:
    config = resolved(arm, lag)
    assert config.num_rollout == LAST + (0 if arm == BASE else lag)
    assert (config.num_ahead, config.update_weights_interval) == (0, 1)
    if arm != "age-mask":
        assert config.staleness_bound >= staleness.lag_of(arm, lag)


def test_every_arm_is_told_of_on_the_page() -> None:
    assert page.ABOUT.keys() == ARMS.keys()


def test_the_job_is_the_frozen_one() -> None:
    """Another digest is another job: its runs are made anew, on-policy and naive first."""
    assert staleness.job_digest() == "4a095f94bc0f"


def test_what_the_arms_that_were_run_are_made_with_is_as_it_was() -> None:
    """Where one of these differs, the runs that are kept are of another study."""
    parts = {"preset": "8ec9e8539be1", "model": "962c5040ae92", "questions": "87ce9a13d2f5"}
    assert staleness.made_with(BASE) == {**parts, "arm": "14776ea342e5"}
    assert staleness.made_with(NAIVE) == {**parts, "arm": "e5f4b2f6e70c"}
    assert len({staleness.made_with(arm)["arm"] for arm in ARMS}) == len(ARMS)


@pytest.mark.parametrize("part", ["preset", "model", "questions", "arm"])
def test_a_run_that_was_made_with_something_else_is_named_and_not_continued(
    part: str, tmp_path: Path
) -> None:
    path, kept = tmp_path / "curves.jsonl", curve(NAIVE, 1, 0.5)
    other = msgspec.structs.replace(kept, seed=2, made_with=kept.made_with | {part: "another"})
    for each in (kept, other, msgspec.structs.replace(kept, seed=3, arm="gone")):
        append(path, each)
    assert [c.seed for c in staleness.read_curves(path)] == [1]
    assert staleness.of_others(path) == [
        f"naive, lag 8, seed 2 is left out: made with another {part}",
        "gone, lag 8, seed 3 is left out: made with another arm",
    ]


def test_all_runs_that_are_kept_are_of_the_study_as_it_is() -> None:
    assert staleness.of_others(staleness.KEPT) == []
    num = len(staleness.KEPT.read_bytes().splitlines())
    assert len(staleness.read_curves(staleness.KEPT)) == num > 0


def test_the_questions_are_the_first_of_the_held_out_ones() -> None:
    env = load_env(str(resolved(NAIVE).env))
    check_class(env)
    (few,) = env.eval_tasks({}).values()
    assert few == SearchR1Env.eval_tasks({})["heldout"][:NUM_QUESTIONS]


# ---- what is read of a run ----------------------------------------------------------------------


def step(number: int, ages: list[int], ess: float | None) -> dict[str, Any]:
    metrics: dict[str, float | None] = {"rollout/reward_mean": 0.25}
    metrics |= dict.fromkeys(("train/ess_sequence/age_8", "train/log_ratio_m2/age_8"), ess)
    histograms = {"train/age_histogram": [list(range(len(ages) + 1)), ages]}
    return {"step": number, "metrics": metrics, "histograms": histograms}


def scored(due: int, version: int, score: float) -> dict[str, Any]:
    found = {"score": score, "n": 160, "failed": 0, "version_min": version, "version_max": version}
    return {"step": due, "eval": {"heldout": found}}


def run_of(lag: int) -> list[dict[str, Any]]:
    """The lines of a run: the score of weights after i iterations is i / 100."""
    lines = [scored(0, 0, 0.0)]
    for number in range(1, LAST + lag + 1):
        age = min(number - 1, lag)
        lines.append(step(number, [0] * age + [100], 0.5 if age == 8 else None))
        if number % 4 == 0:
            version = max(number - lag, 0)
            lines.append(scored(number, version, version / 100))
    return lines


def text(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_scores_are_of_the_weights_that_answered() -> None:
    for lag in (0, 8):
        found = curve_of(text(run_of(lag)), NAIVE, lag, 3)
        assert found.scores == {i: i / 100 for i in (0, *POINTS.scored)}
        assert (found.arm, found.lag, found.seed) == (NAIVE, lag, 3)
        assert len(found.rewards) == len(found.metrics[MASKED]) == LAST + lag
        assert found.ess == found.m2 == ([0.5] * LAST if lag else [])


def test_a_score_that_came_an_iteration_late_stands_for_the_one_that_was_due() -> None:
    lines = run_of(8)
    (late,) = [i for i, line in enumerate(lines) if "eval" in line and line["step"] == 20]
    lines[late] = scored(20, 13, 0.9)
    assert curve_of(text(lines), NAIVE, 8, 1).scores[12] == 0.9
    lines[late] = scored(20, 14, 0.9)
    with pytest.raises(DataError, match=r"no score after \[12\]"):
        curve_of(text(lines), NAIVE, 8, 1)


def test_a_run_with_a_token_of_another_age_is_refused() -> None:
    lines = run_of(8)
    (at,) = [i for i, line in enumerate(lines) if "metrics" in line and line["step"] == 20]
    lines[at] = step(20, [3, 0, 0, 0, 0, 0, 0, 0, 97], 0.5)
    with pytest.raises(DataError, match="iteration 20: tokens by age"):
        curve_of(text(lines), NAIVE, 8, 1)


def test_a_run_that_is_not_whole_or_a_score_of_two_versions_is_refused() -> None:
    with pytest.raises(DataError, match="iterations are"):
        curve_of(text(run_of(8)[:-3]), NAIVE, 8, 1)
    lines = run_of(8)
    lines[-1]["eval"]["heldout"]["version_min"] = 31
    with pytest.raises(DataError, match="no score of one version"):
        curve_of(text(lines), NAIVE, 8, 1)


def test_what_is_measured_is_kept_and_another_jobs_runs_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "curves.jsonl"
    assert staleness.read_curves(path) == []
    mine = [curve(arm, seed, 0.5) for seed in (2, 1) for arm in (NAIVE, BASE)]
    for each in (*mine, msgspec.structs.replace(mine[0], job="another", seed=5)):
        append(path, each)
    found = staleness.read_curves(path)
    assert [(c.arm, c.seed) for c in found] == [(BASE, 1), (BASE, 2), (NAIVE, 1), (NAIVE, 2)]
    append(path, curve(NAIVE, 1, 0.75))
    assert staleness.read_curves(path)[2].scores[4] == 0.75


def test_the_page_names_the_machines_of_the_runs_and_not_the_one_that_writes_it() -> None:
    first, second = (
        msgspec.structs.replace(curve(BASE, seed, 0.5), machine=machine, commit="abc")
        for seed, machine in ((1, "one"), (2, "other"))
    )
    told = staleness.origins([first, second, first])
    assert told == {"machine": "one; other", "commits": ["abc"]}


# ---- the numbers --------------------------------------------------------------------------------
