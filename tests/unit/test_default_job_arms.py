"""From run directories to numbers: every expected value here is worked out by hand."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.errors import DataError
from agentrl.telemetry.recorder import Recorder
from scripts.default_job import arms, report, runs
from tests.manual_clock import ManualClock
from tests.unit.default_job_runs import START_S, write_curve, write_run


def write_arm(folder: Path, name: str, *, times: float, **config: Any) -> list[Path]:
    """Three seeds whose iterations last 0.5, 1 and 1.5 times 10 s, times `times`."""
    return [
        write_run(folder / f"{name}-{seed}", iteration_s=seed * 5 * times, seed=seed, **config)
        for seed in (1, 2, 3)
    ]


# ---- a run --------------------------------------------------------------------------------------


def test_the_clock_starts_when_the_evaluation_before_training_is_over(tmp_path: Path) -> None:
    run = runs.read_run(write_run(tmp_path / "r"))
    assert [(s.step, s.seconds, s.exact_match, s.n) for s in run.scores] == [
        (0, 0.0, 0.4, 100),
        (2, 20.0, 0.6, 100),
        (4, 40.0, 0.8, 100),
    ]
    assert run.rewards == {1: (10.0, 0.1), 2: (20.0, 0.2), 3: (30.0, 0.3), 4: (40.0, 0.4)}
    assert run.seconds == 40.0
    assert run.own == {0: 0.38, 4: 0.81}


def test_a_run_that_is_not_rewarded_has_its_clock_and_its_scores(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", own=None, is_rewarded=False, prompt_data='"/far/rows.jsonl"')
    run = runs.read_run(path)
    assert [(s.step, s.seconds) for s in run.scores] == [(0, 0.0), (2, 20.0), (4, 40.0)]
    assert (run.seconds, run.rewards, run.own) == (40.0, {}, {})
    assert run.config == {"prompt_data": "rows.jsonl"}


def test_the_clock_starts_no_earlier_than_the_learner_waits(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r")
    metrics = path / "metrics.jsonl"
    # the first iteration is 4 s long, so the learner was not there until 6 s after the evaluation
    metrics.write_text(
        metrics.read_text().replace('"perf/iteration_s": 50.0', '"perf/iteration_s": 4.0')
    )
    found = runs.read_run(path).rewards.values()
    assert [seconds for seconds, _ in found] == [4.0, 14.0, 24.0, 34.0]


def test_an_iteration_repeated_after_a_recovery_counts_as_it_was_last(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r")
    lines = (path / "metrics.jsonl").read_text().splitlines()
    again = json.loads(lines[3]) | {"time": START_S + 50}
    again["metrics"]["rollout/reward_mean"] = 0.9
    late = json.loads(lines[4]) | {"time": START_S + 60}
    both = [json.dumps(again), json.dumps(late)]
    (path / "metrics.jsonl").write_text("\n".join([*lines[:4], *both, *lines[5:]]))
    rewards = runs.read_run(path).rewards
    assert rewards == {1: (10, 0.1), 2: (20, 0.2), 3: (50, 0.9), 4: (60, 0.4)}


def test_what_the_recorder_writes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    write_config(path / "config.toml", RunConfig(num_rollout=1, async_buffer_size=4))
    buffer = {"sampled_tokens": 0}
    metrics = {"rollout/reward_mean": 0.5, "perf/iteration_s": 2.0, "perf/lease_wait_s": 0.5}
    scored = {"name": "heldout", "id": "", "n": 8, "failed": 0, "version_min": 0, "version_max": 0}
    with Recorder(path, RunConfig(num_rollout=1), ManualClock(), stream=io.StringIO()) as recorder:
        recorder.evaluation(0, scored | {"score": 0.25}, is_greedy=False)
        recorder.event("step", {"number": 1, "metrics": metrics, "buffer": buffer})
        recorder.evaluation(1, scored | {"score": 0.75}, is_greedy=False)
        recorder.finish("complete")
    write_curve(path, {0: 0.5, 1: 0.75}, 8)
    run = runs.read_run(path)
    assert [(s.step, s.exact_match, s.n) for s in run.scores] == [(0, 0.5, 8), (1, 0.75, 8)]
    assert run.own == {0: 0.25, 1: 0.75}
    assert [(step, value) for step, (_, value) in run.rewards.items()] == [(1, 0.5)]
    assert run.config["async_buffer_size"] == 4
    assert run.summary.steps == 1


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
def test_a_run_that_is_not_complete_is_refused(tmp_path: Path, status: str) -> None:
    with pytest.raises(DataError, match=f"the run is {status}, not complete"):
        runs.read_run(write_run(tmp_path / "r", status=status))


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({0: 0.4, 2: 0.5}, r"scored was \['heldout', 0, 2\]; wanted is heldout .* 0 and 4"),
        ({2: 0.4, 4: 0.5}, r"scored was \['heldout', 2, 4\]"),
        ({0: 0.4, 4: 0.5, 6: 0.5}, r"metrics.jsonl lacks the scored iterations \[6\]"),
    ],
)
def test_a_run_that_is_not_scored_at_both_ends_is_refused(
    tmp_path: Path, scores: dict[int, float], said: str
) -> None:
    path = write_run(tmp_path / "r")
    write_curve(path, scores, 100)
    with pytest.raises(DataError, match=said):
        runs.read_run(path)


def test_a_run_that_was_never_scored_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r")
    (path / "curve.json").unlink()
    with pytest.raises(DataError, match=r"scored was nothing; .* run `python -m scripts"):
        runs.read_run(path)


def test_scores_of_different_questions_make_no_curve(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r")
    curve = json.loads((path / "curve.json").read_bytes())
    curve["rewards"]["2"].pop()
    (path / "curve.json").write_text(json.dumps(curve))
    with pytest.raises(DataError, match="not of the same questions"):
        runs.read_run(path)


def test_a_folder_that_is_no_run_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere is no run directory"):
        runs.read_run(tmp_path / "nowhere")


# ---- arms ---------------------------------------------------------------------------------------


def read(path: Path, **changes: Any) -> runs.Run:
    return runs.read_run(write_run(path, **changes))


def read_arm(folder: Path, name: str, *, times: float) -> list[runs.Run]:
    return [runs.read_run(path) for path in write_arm(folder, name, times=times)]


def test_a_gain_counts_only_the_questions_that_changed(tmp_path: Path) -> None:
    # 40 of 100 changed to right, none to wrong: 1.959964 * sqrt(0.4 * 0.6 / 100) = 0.096018
    found = arms.gain(read(tmp_path / "r"))
    assert found == pytest.approx((0.4, 0.303982, 0.496018), abs=1e-6)
    same = arms.gain(read(tmp_path / "same", scores=(0.4, 0.4)))
    assert same == (0, 0, 0)


def test_the_time_to_a_score_is_linear_between_scored_iterations(tmp_path: Path) -> None:
    run = read(tmp_path / "r")
    assert [arms.seconds_to(target, run) for target in (0.3, 0.5, 0.6, 0.75)] == pytest.approx(
        [0, 10, 20, 35]
    )
    assert arms.seconds_to(0.9, run) is None


def test_a_score_that_is_lost_again_was_reached_the_first_time(tmp_path: Path) -> None:
    run = read(tmp_path / "r", scores=(0.4, 0.6, 0.5, 0.7))
    assert arms.seconds_to(0.55, run) == pytest.approx(15)


def test_an_arm_that_is_twice_as_fast_is_said_to_be_so(tmp_path: Path) -> None:
    fast, slow = (read_arm(tmp_path, name, times=times) for name, times in (("a", 1), ("s", 2)))
    # means 10 and 20; extremes 10 / 15 and 30 / 5
    assert arms.sooner(0.5, fast, slow) == pytest.approx((2, 2 / 3, 6))
    assert arms.sooner(0.9, fast, slow) is None
    assert arms.sooner(0.4, fast, slow) is None  # both had it at the start
    good, bad = read(tmp_path / "good"), read(tmp_path / "bad", scores=(0.4, 0.5, 0.55))
    assert arms.sooner(0.6, [good, bad], [good]) is None


def test_arms_are_compared_until_the_shortest_run_ends(tmp_path: Path) -> None:
    both = {name: read_arm(tmp_path, name, times=times) for name, times in (("a", 1), ("s", 2))}
    seconds, found = arms.equal_seconds(both)
    assert seconds == 20  # seed 1 of a: four iterations of 5 s
    # then the seeds of a are in iterations 4, 2 and 4 / 3, those of s in 2, 1 and 2 / 3
    assert found["a"][1:] == pytest.approx((0.4 + 0.4 / 3, 0.8))
    assert found["s"][1:] == pytest.approx((0.4 + 0.2 / 3, 0.6))


def test_rewards_are_smoothed_over_whole_windows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read(tmp_path / "r", scores=(0.4, 0.5, 0.6, 0.7))
    monkeypatch.setattr(report, "WINDOW", 5)
    first, second = report.smoothed(run).items()
    assert (first[0], *first[1]) == pytest.approx((3, 30, 0.3))
    assert (second[0], *second[1]) == pytest.approx((4, 40, 0.4))
    monkeypatch.setattr(report, "WINDOW", 9)
    ((step, point),) = report.smoothed(run).items()
    assert (step, *point) == pytest.approx((4, 40, 0.35))
