"""The benchmark of the default job: what it runs, what it leaves alone, and what it reports."""

import fcntl
import json
import os
import re
from pathlib import Path

import pytest

from agentrl.config.command_line import Program
from agentrl.config.resolve import parse
from agentrl.errors import DataError
from agentrl.learner.beginning import hf_directory, keeps_models
from benchmarks import default_job
from scripts.default_job.arms import read_arms
from scripts.default_job.report import read_measured
from scripts.default_job.runs import Run
from tests.unit.default_job_runs import write_curve, write_experiment, write_run, write_scores

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "default-job.md"
REPORT = ROOT / "benchmarks" / "results" / "default_job.json"


# ---- what is run --------------------------------------------------------------------------------


def test_the_arms_that_are_compared_in_time_have_three_seeds_and_others_one() -> None:
    options = default_job.parse([])
    jobs = default_job.jobs(options.arms, options.seeds)
    assert jobs[: len(options.arms)] == [(arm, 0) for arm in options.arms]
    assert jobs[len(options.arms) :] == [("async", 1), ("sync", 1), ("async", 2), ("sync", 2)]


def test_seeds_leave_out_all_others() -> None:
    assert default_job.jobs(["async", "age-8"], [1, 2]) == [("async", 1), ("async", 2)]
    assert default_job.jobs(["async", "age-8"], [0]) == [("async", 0), ("age-8", 0)]


def test_a_choice_without_a_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        default_job.parse(["--arms", "age-8", "--seeds", "1"])
    assert "none of ['age-8'] has a seed of [1]" in capsys.readouterr().err


@pytest.mark.parametrize("arm", default_job.ARMS)
def test_every_arm_keeps_its_models_and_is_not_evaluated_beside_training(
    arm: str, tmp_path: Path
) -> None:
    is_sync = default_job.ARMS[arm][0] == "train.py"
    program: Program = "train" if is_sync else "train_async"
    run = tmp_path / f"{arm}-1"
    config = parse(default_job.flags_of(arm, 1, 40, run), program).config
    assert keeps_models(config)
    assert hf_directory(config, 14) == run / "models" / "14"
    assert (config.save_interval, config.eval_interval, config.num_rollout) == (2, None, 40)
    assert not config.skip_eval_before_train
    assert (config.seed, config.rollout_seed, config.run_id) == (1, 1, run.name)


# ---- what is left alone -------------------------------------------------------------------------


def test_what_is_trained_and_scored_is_not_measured_again(tmp_path: Path) -> None:
    write_scores(write_run(tmp_path / "async-0"), 0.8, 0.5)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    default_job.measure("async", 0, 4, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_run_is_scored_when_its_last_model_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    assert default_job.is_scored(run)
    write_curve(run, {0: 0.4, 2: 0.5}, 100)
    assert not default_job.is_scored(run)
    (run / "curve.json").unlink()
    assert not default_job.is_scored(run)


@pytest.mark.parametrize("status", ["interrupted", "failed", "running"])
def test_a_run_that_was_cut_is_not_complete_and_is_set_aside(tmp_path: Path, status: str) -> None:
    for number in (1, 2):
        run = write_run(tmp_path / "async-0", status=status)
        assert default_job.steps_of(run) is None
        default_job.set_aside(run)
        assert not run.exists()
        assert (tmp_path / f"async-0.cut{number}" / "summary.json").exists()
    assert default_job.steps_of(write_run(tmp_path / "async-0")) == 4
    default_job.set_aside(tmp_path / "async-1")


def test_a_run_that_another_program_works_on_is_left_where_it_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "async-0", status="running")
    folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(DataError, match="another program works on"):
            default_job.set_aside(run)
    finally:
        os.close(folder)
    assert run.exists()


def test_a_part_that_is_measured_later_leaves_the_commit_of_the_others(tmp_path: Path) -> None:
    default_job.note(tmp_path, "async-0", "trained")
    path = tmp_path / "measured" / "async-0.json"
    parts = json.loads(path.read_bytes())
    parts["trained"]["commit"] = "c0ffee"
    path.write_text(json.dumps(parts))
    default_job.note(tmp_path, "async-0", "curve")
    default_job.note(tmp_path, "sync-0", "trained")
    found = read_measured(tmp_path, ["async-0", "sync-0", "nothing"])
    assert found["async-0"]["trained"].commit == "c0ffee"
    assert found["async-0"]["curve"].commit != "c0ffee"
    assert (list(found["sync-0"]), found["nothing"]) == (["trained"], {})
    default_job.note(tmp_path, "async-0", "trained")  # again, so what was scored is gone
    assert list(read_measured(tmp_path, ["async-0"])["async-0"]) == ["trained"]


# ---- what is reported ---------------------------------------------------------------------------


@pytest.fixture
def arms(tmp_path: Path) -> dict[str, list[Run]]:
    return read_arms(write_experiment(tmp_path / "experiment"))


def test_the_report_has_seeds_ends_gains_and_the_ratio(
    arms: dict[str, list[Run]], tmp_path: Path
) -> None:
    sampled = default_job.sampled_gains(arms, tmp_path / "experiment")
    assert sampled == pytest.approx({"async": 40, "sync": 30, "more-sft": 60})
    rows = {row.metric: row for row in default_job.rows(arms, sampled)}
    values = {metric: row.value for metric, row in rows.items()}
    assert values["seeds_async"] == 2
    assert values["end_async"] == pytest.approx(80)
    assert values["gain_async"] == pytest.approx(40)
    assert values["gain_low_async"] == pytest.approx(30.3982, abs=1e-4)
    assert values["sampled_gain_async"] == pytest.approx(40)
    assert "sampled_gain_no-search" not in values
    assert values["gain_more-sft"] == pytest.approx(50)
    half = [values[f"async_sooner_to_50{suffix}"] for suffix in ("", "_low", "_high")]
    assert half == pytest.approx([2, 1.6, 2.5])
    assert rows["async_sooner_to_50"].against == "sync"
    assert values["equal_seconds"] == 32
    assert values["at_equal_seconds_more-sft"] == pytest.approx(90)


def test_the_command_of_the_report_names_no_path(arms: dict[str, list[Run]]) -> None:
    assert default_job.command(arms) == (
        "python -m benchmarks.default_job --arms async sync no-search more-sft --seeds 0 1 "
        "--num-rollout 4"
    )


def test_the_page_and_the_report_that_are_there_agree() -> None:
    text = PAGE.read_text()
    assert {"gain_async", "gain_sync"} <= cells(text).keys()
    rows = {row["metric"]: row["value"] for row in json.loads(REPORT.read_bytes())["rows"]}
    agree(cells(text), rows)
    assert {name for name in rows if re.fullmatch(r"gain_(?!low_).*", name)} == {
        name for name in cells(text) if name.startswith("gain_")
    }


def test_a_page_and_a_report_that_disagree_are_seen(arms: dict[str, list[Run]]) -> None:
    lines = ["| arm | seeds | start | end | gain, points | s / iteration |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    lines += ["| async | 2 | 40.0 % | 80.0 % (79.0 to 81.0) | 40.0 (39.0 to 41.0) | 9.00 |"]
    rows = {row.metric: row.value for row in default_job.rows(arms, {})}
    found = cells("\n".join(lines))
    assert found == {"seeds_async": 2, "end_async": 80, "gain_async": 40}
    agree(found, rows)
    with pytest.raises(AssertionError):
        agree(found | {"gain_async": 41}, rows)


def cells(text: str) -> dict[str, float]:
    """What the first table of a page with arms and gains says, as metrics of the report."""
    lines = iter(text.splitlines())
    head = next(line for line in lines if line.startswith("| arm | seeds |")).split(" | ")
    found = {}
    for line in lines:
        if not line.startswith("|"):
            break
        if not line.startswith("| ---"):
            row = dict(zip(head, line.split(" | "), strict=True))
            arm = row["| arm"].removeprefix("| ")
            for metric, column in (("seeds", "seeds"), ("end", "end"), ("gain", "gain, points")):
                found[f"{metric}_{arm}"] = float(row[column].split()[0])
    return found


def agree(found: dict[str, float], rows: dict[str, float]) -> None:
    """What a page says is what the report says, to the digits of the page; a report may lack what
    earlier ones lacked."""
    both = {metric: value for metric, value in found.items() if metric in rows}
    assert {metric for metric in both if metric.startswith("gain_")}
    for metric, value in both.items():
        assert value == pytest.approx(rows[metric], abs=0.0501), metric
