"""From run directories to numbers and the page: every expected value is worked out by hand."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.telemetry.recorder import Recorder
from scripts.default_job import report
from scripts.figures import COLOURS
from tests.manual_clock import ManualClock
from tests.unit.default_job_runs import START_S, write_experiment, write_run, write_scored


def read(path: Path, **changes: Any) -> report.Run:
    """The one run of its experiment, whose model before training scores 40 %."""
    write_scored(path / "before.json", 0.4, 0.2)
    write_run(path / "async-0", **changes)
    return again(path)


def again(path: Path) -> report.Run:
    ((run,),) = report.read_arms(path).values()
    return run


def read_arm(path: Path, *, times: float) -> list[report.Run]:
    """Three seeds whose iterations last 0.5, 1 and 1.5 times 10 s, times `times`."""
    return [read(path / str(seed), iteration_s=seed * 5 * times) for seed in (1, 2, 3)]


# ---- a run --------------------------------------------------------------------------------------


def test_the_clock_starts_when_the_evaluation_before_training_is_over(tmp_path: Path) -> None:
    run = read(tmp_path)
    assert [(s.step, s.seconds, s.exact_match, len(s.rewards)) for s in run.scores] == [
        (0, 0.0, 0.4, 100),
        (2, 20.0, 0.6, 100),
        (4, 40.0, 0.8, 100),
    ]
    assert run.rewards == {1: (10.0, 0.1), 2: (20.0, 0.2), 3: (30.0, 0.3), 4: (40.0, 0.4)}
    assert (run.steps, run.seconds) == (4, 40.0)
    assert run.sampled_gain == pytest.approx(0.3)


def test_the_clock_starts_no_earlier_than_the_learner_waits(tmp_path: Path) -> None:
    read(tmp_path)
    metrics = tmp_path / "async-0" / "metrics.jsonl"
    # the first iteration is 4 s long, so the learner was not there until 6 s after the evaluation
    metrics.write_text(
        metrics.read_text().replace('"perf/iteration_s": 50.0', '"perf/iteration_s": 4.0')
    )
    assert [seconds for seconds, _ in again(tmp_path).rewards.values()] == [4.0, 14.0, 24.0, 34.0]


def test_an_iteration_repeated_after_a_recovery_counts_as_it_was_last(tmp_path: Path) -> None:
    read(tmp_path)
    metrics = tmp_path / "async-0" / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    third = json.loads(lines[3]) | {"time": START_S + 50}
    third["metrics"]["rollout/reward_mean"] = 0.9
    fourth = json.loads(lines[4]) | {"time": START_S + 60}
    metrics.write_text("\n".join([*lines[:4], *map(json.dumps, (third, fourth)), *lines[5:]]))
    rewards = again(tmp_path).rewards
    assert rewards == {1: (10, 0.1), 2: (20, 0.2), 3: (50, 0.9), 4: (60, 0.4)}


def test_what_the_recorder_writes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "async-0"
    path.mkdir()
    buffer = {"sampled_tokens": 0}
    metrics = {"rollout/reward_mean": 0.5, "perf/iteration_s": 2.0, "perf/lease_wait_s": 0.5}
    scored = {"name": "heldout", "id": "", "n": 8, "failed": 0, "version_min": 0, "version_max": 0}
    with Recorder(path, RunConfig(num_rollout=1), ManualClock(), stream=io.StringIO()) as recorder:
        recorder.evaluation(0, scored | {"score": 0.25}, is_greedy=False)
        recorder.event("step", {"number": 1, "metrics": metrics, "buffer": buffer})
        recorder.evaluation(1, scored | {"score": 0.75}, is_greedy=False)
        recorder.finish("complete")
    write_scored(tmp_path / "before.json", 0.5, 0.5)
    write_scored(path / "scores" / "1.json", 0.75, 0.75)
    run = again(tmp_path)
    assert [(s.step, s.exact_match) for s in run.scores] == [(0, 0.5), (1, 0.75)]
    assert [(step, value) for step, (_, value) in run.rewards.items()] == [(1, 0.5)]


def test_broken_scores_are_refused(tmp_path: Path) -> None:
    read(tmp_path)
    (tmp_path / "async-0" / "scores" / "2.json").write_text('{"greedy": [')
    with pytest.raises(DataError, match=r"2.json cannot be read: .*; remove it"):
        again(tmp_path)


# ---- numbers ------------------------------------------------------------------------------------


def test_a_gain_counts_only_the_questions_that_changed(tmp_path: Path) -> None:
    # 40 of 100 changed to right, none to wrong: 1.959964 * sqrt(0.4 * 0.6 / 100) = 0.096018
    found = report.gain(read(tmp_path / "r"))
    assert found == pytest.approx((0.4, 0.303982, 0.496018), abs=1e-6)
    assert report.gain(read(tmp_path / "same", scores=(0.4,))) == (0, 0, 0)


def test_the_time_to_a_score_is_linear_between_scored_iterations(tmp_path: Path) -> None:
    run = read(tmp_path)
    assert [report.seconds_to(target, run) for target in (0.3, 0.5, 0.6, 0.75)] == pytest.approx(
        [0, 10, 20, 35]
    )
    assert report.seconds_to(0.9, run) is None


def test_a_score_that_is_lost_again_was_reached_the_first_time(tmp_path: Path) -> None:
    run = read(tmp_path, scores=(0.6, 0.5, 0.7))
    assert report.seconds_to(0.55, run) == pytest.approx(15)


def test_an_arm_that_is_twice_as_fast_is_said_to_be_so(tmp_path: Path) -> None:
    fast, slow = (read_arm(tmp_path / name, times=times) for name, times in (("a", 1), ("s", 2)))
    # means 10 and 20; extremes 10 / 15 and 30 / 5
    assert report.sooner(0.5, fast, slow) == pytest.approx((2, 2 / 3, 6))
    assert report.sooner(0.9, fast, slow) is None
    assert report.sooner(0.4, fast, slow) is None  # both had it at the start
    good, bad = read(tmp_path / "good"), read(tmp_path / "bad", scores=(0.5, 0.55))
    assert report.sooner(0.6, [good, bad], [good]) is None


def test_arms_are_compared_until_the_shortest_run_ends(tmp_path: Path) -> None:
    both = {name: read_arm(tmp_path / name, times=times) for name, times in (("a", 1), ("s", 2))}
    seconds, found = report.equal_seconds(both)
    assert seconds == 20  # seed 1 of a: four iterations of 5 s
    # then the seeds of a are in iterations 4, 2 and 4 / 3, those of s in 2, 1 and 2 / 3
    assert found["a"][1:] == pytest.approx((0.4 + 0.4 / 3, 0.8))
    assert found["s"][1:] == pytest.approx((0.4 + 0.2 / 3, 0.6))


def test_rewards_are_smoothed_over_whole_windows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read(tmp_path, scores=(0.5, 0.6, 0.7))
    monkeypatch.setattr(report, "WINDOW", 5)
    first, second = report.smoothed(run).items()
    assert (first[0], *first[1]) == pytest.approx((3, 30, 0.3))
    assert (second[0], *second[1]) == pytest.approx((4, 40, 0.4))
    monkeypatch.setattr(report, "WINDOW", 9)
    ((step, point),) = report.smoothed(run).items()
    assert (step, *point) == pytest.approx((4, 40, 0.35))


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    return write_experiment(tmp_path / "experiment")


def test_the_rows_are_seeds_ends_gains_and_the_comparison_in_time(experiment: Path) -> None:
    rows = {row.metric: row for row in report.rows(report.read_arms(experiment))}
    values = {metric: row.value for metric, row in rows.items()}
    assert values["seeds_async"] == 2
    assert values["end_async"] == pytest.approx(80)
    assert values["gain_async"] == pytest.approx(40)
    assert values["gain_low_async"] == pytest.approx(30.3982, abs=1e-4)
    assert values["sampled_gain_async"] == pytest.approx(40)
    assert values["gain_age-8"] == values["sampled_gain_age-8"] == 0
    half = [values[f"async_sooner_to_50{suffix}"] for suffix in ("", "_low", "_high")]
    assert half == pytest.approx([2, 1.6, 2.5])
    assert rows["async_sooner_to_50"].against == "sync"
    # after 32 s async is at 0.8 and 0.4 + 0.4 * 32 / 40, sync at half that gain
    assert values["equal_seconds"] == 32
    assert values["at_equal_seconds_async"] == pytest.approx(76)
    assert values["at_equal_seconds_sync"] == pytest.approx(58)


# ---- arms and the page --------------------------------------------------------------------------


def test_runs_that_are_cut_or_not_scored_are_named_and_left_out(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(experiment / "async-2", status="interrupted")
    (write_run(experiment / "async-3") / "scores" / "4.json").unlink()
    write_run(experiment / "async-0.cut1")
    write_run(experiment / "stranger-0")
    found = report.read_arms(experiment)
    assert [run.name for run in found["async"]] == ["async-0", "async-1"]
    assert list(found) == ["async", "sync", "age-8"]
    assert capsys.readouterr().err.splitlines() == [
        "async-2 is not complete and scored: left out",
        "async-3 is not complete and scored: left out",
    ]


def test_without_a_run_there_is_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no run that is complete and scored"):
        report.read_arms(tmp_path)


def test_the_page_has_its_tables_between_its_marks(experiment: Path, tmp_path: Path) -> None:
    page = tmp_path / "default-job.md"
    marks = "<!-- {0} -->\n<!-- end of {0} -->\n"
    page.write_text(f"By hand.\n\n{marks.format('arms')}\n{marks.format('in time')}")
    report.write_page(report.read_arms(experiment), "measured here", tmp_path)
    text = page.read_text()
    assert text.startswith("By hand.\n\n<!-- arms -->\nmeasured here\n\n| arm | what it is |")
    assert (
        "| async | 2 | 40.0 % | 80.0 % | 40.0 | 0 | 9 (8 to 10) | 18 (16 to 20) | 9.00 (8.00"
        in text
    )
    # both are at 40 % from the start
    assert "| async than sync | - | 2.00 (1.60 to 2.50) | 2.00 (1.60 to 2.50) |" in text
    assert "After 32 s, when the shortest run had ended: `async` 76.0 % (72.0 to 80.0), " in text
    assert COLOURS[0] in (tmp_path / "default-job.svg").read_text()


def test_without_the_base_the_page_does_without_the_comparison(experiment: Path) -> None:
    arms = {name: runs for name, runs in report.read_arms(experiment).items() if name != "sync"}
    assert list(report.in_time(arms)) == []
    assert "gain_async" in {row.metric for row in report.rows(arms)}
