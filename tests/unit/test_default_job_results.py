"""From run directories to numbers: every expected value here is worked out by hand."""

import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.errors import DataError
from agentrl.telemetry.recorder import Recorder
from tests.manual_clock import ManualClock
from tests.unit.default_job_runs import START_S, write_curve, write_run

FOLDER = Path(__file__).parents[2] / "scripts" / "default_job"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(FOLDER)
    intervals, runs, arms, equal = map(import_module, ("intervals", "runs", "arms", "equal"))
    results = import_module("results")

TARGETS = (0.5, 0.6, 0.7, 0.9)


def write_arm(folder: Path, name: str, *, times: float, **config: Any) -> list[Path]:
    """Three seeds whose iterations last 0.5, 1 and 1.5 times 10 s, times `times`."""
    return [
        write_run(folder / f"{name}-{seed}", iteration_s=seed * 5 * times, seed=seed, **config)
        for seed in (1, 2, 3)
    ]


@pytest.fixture
def two_arms(tmp_path: Path) -> list[str]:
    """`--runs` arguments of an asynchronous arm and of one that is half as fast."""
    fast = write_arm(tmp_path, "a", times=1, async_buffer_size=4)
    slow = write_arm(tmp_path, "s", times=2, async_buffer_size=0)
    return [f"{name}={','.join(map(str, paths))}" for name, paths in (("B=4", fast), ("B=0", slow))]


# ---- intervals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_has_the_published_values(
    successes: int, n: int, low: float, high: float
) -> None:
    assert intervals.wilson(successes / n, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("share", "n"), [(0.5, 0), (1.2, 10), (-0.1, 10)])
def test_a_share_that_cannot_be_is_refused(share: float, n: int) -> None:
    with pytest.raises(ValueError, match="it must lie in"):
        intervals.wilson(share, n)


def test_a_paired_gain_counts_only_the_questions_that_changed() -> None:
    gain = intervals.paired_gain([0, 0, 1, 1], [1, 0, 1, 1])
    # changes 1, 0, 0, 0: variance 3 / 16; 1.959964 * sqrt(3 / 64) = 0.424345
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.25, -0.174345, 0.674345), abs=1e-6)
    same = intervals.paired_gain([0, 1], [0, 1])
    assert (same.low, same.high) == (0, 0)


# ---- a run --------------------------------------------------------------------------------------


def test_the_clock_starts_when_the_evaluation_before_training_is_over(tmp_path: Path) -> None:
    run = runs.read_run(write_run(tmp_path / "r"))
    assert [(s.step, s.seconds, s.exact_match, s.n) for s in run.scores] == [
        (0, 0.0, 0.4, 100),
        (2, 20.0, 0.6, 100),
        (4, 40.0, 0.8, 100),
    ]
    assert [(p.step, p.seconds, p.value) for p in run.rewards] == [
        (1, 10.0, 0.1), (2, 20.0, 0.2), (3, 30.0, 0.3), (4, 40.0, 0.4),
    ]  # fmt: skip
    assert run.seconds == 40.0
    assert run.own == {0: 0.38, 4: 0.81}


def test_a_run_that_is_not_rewarded_has_its_clock_and_its_scores(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", own=None, is_rewarded=False, prompt_data='"/far/rows.jsonl"')
    run = runs.read_run(path)
    assert [(s.step, s.seconds) for s in run.scores] == [(0, 0.0), (2, 20.0), (4, 40.0)]
    assert (run.seconds, run.rewards, run.own) == (40.0, [], {})
    assert run.config == {"prompt_data": "rows.jsonl"}


def test_the_clock_starts_no_earlier_than_the_learner_waits(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r")
    metrics = path / "metrics.jsonl"
    # the first iteration is 4 s long, so the learner was not there until 6 s after the evaluation
    metrics.write_text(
        metrics.read_text().replace('"perf/iteration_s": 50.0', '"perf/iteration_s": 4.0')
    )
    assert [point.seconds for point in runs.read_run(path).rewards] == [4.0, 14.0, 24.0, 34.0]


def test_an_iteration_repeated_after_a_recovery_counts_as_it_was_last(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r")
    lines = (path / "metrics.jsonl").read_text().splitlines()
    again = json.loads(lines[3]) | {"time": START_S + 50}
    again["metrics"]["rollout/reward_mean"] = 0.9
    late = json.loads(lines[4]) | {"time": START_S + 60}
    both = [json.dumps(again), json.dumps(late)]
    (path / "metrics.jsonl").write_text("\n".join([*lines[:4], *both, *lines[5:]]))
    rewards = runs.read_run(path).rewards
    assert [(p.step, p.seconds) for p in rewards] == [(1, 10), (2, 20), (3, 50), (4, 60)]
    assert rewards[2].value == 0.9


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
    assert [(p.step, p.value) for p in run.rewards] == [(1, 0.5)]
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
    with pytest.raises(DataError, match=r"scored was nothing; .* run snapshots.py"):
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


def test_the_time_to_a_score_is_linear_between_scored_iterations(tmp_path: Path) -> None:
    scores = runs.read_run(write_run(tmp_path / "r")).scores
    assert arms.seconds_to(0.5, scores) == pytest.approx(10)
    assert arms.seconds_to(0.6, scores) == pytest.approx(20)
    assert arms.seconds_to(0.75, scores) == pytest.approx(35)
    assert arms.seconds_to(0.3, scores) == 0
    assert arms.seconds_to(0.9, scores) is None


def test_a_score_that_is_lost_again_was_reached_the_first_time(tmp_path: Path) -> None:
    run = runs.read_run(write_run(tmp_path / "r", scores=(0.4, 0.6, 0.5, 0.7)))
    assert arms.seconds_to(0.55, run.scores) == pytest.approx(15)


def test_rewards_are_smoothed_over_whole_windows_only() -> None:
    points = [runs.Point(i, 10.0 * i, value) for i, value in enumerate([0.0, 0.3, 0.6, 0.0, 0.9])]
    found = [(p.step, p.seconds, p.value) for p in arms.smooth(points, 3)]
    assert found == [
        (1, 10.0, pytest.approx(0.3)),
        (2, 20.0, pytest.approx(0.3)),
        (3, 30.0, pytest.approx(0.5)),
    ]
    assert [p.value for p in arms.smooth(points, 9)] == [pytest.approx(0.36)]
    assert arms.smooth(points, 1) == points


def test_an_arm_is_the_mean_and_the_range_of_its_seeds(tmp_path: Path) -> None:
    read = [runs.read_run(path) for path in write_arm(tmp_path, "a", times=1)]
    arm = arms.measure_arm("async", read, TARGETS)
    assert (arm.end.low, arm.end.high) == (0.8, 0.8)
    assert arm.end.mean == pytest.approx(0.8)
    assert arm.gain.mean == pytest.approx(0.4)
    assert arm.seconds == arms.Spread(40, 20, 60)
    assert arm.seconds_per_iteration == arms.Spread(10, 5, 15)
    half = arm.seconds_to["0.5"].seconds
    assert (half.mean, half.low, half.high) == pytest.approx((10, 5, 15))
    assert (arm.seconds_to["0.9"].reached, arm.seconds_to["0.9"].seconds) == (0, None)
    # 40 of 100 changed to right, none to wrong: 1.959964 * sqrt(0.4 * 0.6 / 100) = 0.096018
    assert arm.runs[0].gain.low == pytest.approx(0.303982, abs=1e-6)
    assert (arm.runs[0].own_start, arm.runs[0].own_end) == (0.38, 0.81)


def test_a_time_has_no_mean_unless_every_seed_got_there(tmp_path: Path) -> None:
    good = runs.read_run(write_run(tmp_path / "r1"))
    bad = runs.read_run(write_run(tmp_path / "r2", scores=(0.4, 0.5, 0.55), seed=2))
    times = arms.measure_arm("async", [good, bad], TARGETS).seconds_to
    assert times["0.5"].seconds is not None
    assert (times["0.6"].reached, times["0.6"].runs, times["0.6"].seconds) == (1, 2, None)


def test_runs_that_differ_in_more_than_their_seeds_are_no_arm(tmp_path: Path) -> None:
    read = [
        runs.read_run(write_run(tmp_path / "r1", seed=1, lr=0.1)),
        runs.read_run(write_run(tmp_path / "r2", seed=2, lr=0.2)),
    ]
    with pytest.raises(DataError, match=r"no repetitions of each other: lr: .*0\.1.*0\.2"):
        arms.measure_arm("async", read, TARGETS)


def test_an_arm_that_is_twice_as_fast_is_said_to_be_so(tmp_path: Path) -> None:
    fast, slow = (
        arms.measure_arm(
            name, [runs.read_run(p) for p in write_arm(tmp_path, name, times=t)], TARGETS
        )
        for name, t in (("a", 1), ("s", 2))
    )
    comparison = arms.compare(fast, slow)
    assert comparison.times_sooner.keys() == {"0.5", "0.6", "0.7"}
    ratio = comparison.times_sooner["0.5"]
    # means 10 and 20; extremes 10 / 15 and 30 / 5
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((2, 2 / 3, 6))


def test_a_score_at_a_time_is_linear_between_scored_iterations(tmp_path: Path) -> None:
    scores = runs.read_run(write_run(tmp_path / "r")).scores
    assert [equal.score_at(at, scores) for at in (0, 10, 20, 35, 40)] == pytest.approx(
        [0.4, 0.5, 0.6, 0.75, 0.8]
    )
    with pytest.raises(ValueError, match="41 s lie outside"):
        equal.score_at(41, scores)


def test_arms_are_compared_until_the_shortest_run_ends(tmp_path: Path) -> None:
    both = {
        name: [runs.read_run(path) for path in write_arm(tmp_path, name, times=times)]
        for name, times in (("a", 1), ("s", 2))
    }
    found = equal.at_equal_seconds(both)
    assert found.seconds == [5, 10, 20]  # seed 1 of a: four iterations of 5 s
    lows = {name: over[-1].low for name, over in found.exact_match.items()}
    highs = {name: over[-1].high for name, over in found.exact_match.items()}
    # after 20 s the seeds of a are in iterations 4, 2 and 4 / 3, those of s in 2, 1 and 2 / 3
    assert lows == pytest.approx({"a": 0.4 + 0.4 / 3, "s": 0.4 + 0.2 / 3})
    assert highs == pytest.approx({"a": 0.8, "s": 0.6})


# ---- the whole tool -----------------------------------------------------------------------------


def test_the_tool_writes_tables_numbers_and_a_picture(two_arms: list[str], tmp_path: Path) -> None:
    output = tmp_path / "out"
    argv = ["--output", str(output), "--compare", "B=4", "B=0", "--targets", "0.5", "0.6", "0.7"]
    for spec in two_arms:
        argv += ["--runs", spec]
    said = results.report(results.parse(argv))
    assert said == (output / "tables.md").read_text()
    rows = {line.split(" | ")[0].strip("| "): line for line in reversed(said.splitlines())}
    assert "| 3 | 40.0 % | 80.0 % | 40.0 | 10 (5 to 15) | 20 (10 to 30) |" in rows["B=4"]
    assert "| 2.00 (0.67 to 6.00) |" in rows["B=4 than B=0"]
    assert rows["`async_buffer_size`"] == "| `async_buffer_size` | `4` | `0` |"
    assert "+40.0 (30.4 to 49.6)" in said

    assert "differ from the scores beside them by 2.0\npoints at most" in said
    assert "between the scored iterations 2, 4;" in said.replace("\n", " ")

    numbers = json.loads((output / "numbers.json").read_bytes())
    assert [arm["name"] for arm in numbers["arms"]] == ["B=4", "B=0"]
    assert numbers["comparisons"][0]["times_sooner"]["0.7"]["mean"] == pytest.approx(2)
    assert len(numbers["curves"]["B=0"][2]["scores"]) == 3

    svg = ElementTree.fromstring((output / "curves.svg").read_text())
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}polyline"))) == 2 * 2  # arms, panels


def test_a_control_is_in_all_but_the_table_of_settings(two_arms: list[str], tmp_path: Path) -> None:
    control = write_run(tmp_path / "c", own=None, is_rewarded=False, loss_type='"sft_loss"')
    output = tmp_path / "out"
    argv = ["--output", str(output), "--control", f"sft={control}"]
    for spec in two_arms:
        argv += ["--runs", spec]
    said = results.report(results.parse(argv))
    assert "loss_type" not in said
    assert "| setting | B=4 | B=0 |" in said
    assert "| at equal seconds | after 5 s | after 10 s | after 20 s |" in said
    assert "| sft | 45.0 % | 50.0 % | 60.0 % |" in said
    numbers = json.loads((output / "numbers.json").read_bytes())
    assert list(numbers["equal"]["exact_match"]) == ["B=4", "sft"]
    svg = ElementTree.fromstring((output / "curves.svg").read_text())
    lines = list(svg.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 3 + 2  # the control has a score and no reward


def test_a_curve_is_the_mean_of_its_seeds_after_the_same_iteration() -> None:
    seeds = [
        [runs.Point(0, 0.0, 0.4), runs.Point(2, 10.0, 0.5), runs.Point(4, 20.0, 0.6)],
        [runs.Point(0, 0.0, 0.4), runs.Point(2, 30.0, 0.7)],
    ]
    line = results.outline("async", seeds)
    assert [(v.x, v.low, v.high) for v in line.points] == [(0, 40, 40), (20, 50, 70)]
    assert line.points[1].y == pytest.approx(60)


@pytest.mark.parametrize("spec", ["async", "async=", "=runs/a"])
def test_an_arm_without_name_or_runs_is_refused(spec: str) -> None:
    with pytest.raises(DataError, match="write NAME=RUN"):
        results.read_arms([spec], "heldout")


def test_an_arm_that_is_not_there_cannot_be_compared(two_arms: list[str], tmp_path: Path) -> None:
    argv = ["--output", str(tmp_path), "--runs", two_arms[0], "--compare", "B=4", "sync"]
    with pytest.raises(DataError, match=r"--compare names \['sync'\]; the arms are \['B=4'\]"):
        results.report(results.parse(argv))
