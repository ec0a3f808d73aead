"""The benchmark of the default job: what it runs, what it leaves alone, and what it reports."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from agentrl.config.command_line import Program
from agentrl.config.resolve import parse
from agentrl.errors import DataError
from agentrl.learner.resume import hf_directory, keeps_models
from benchmarks import default_job
from scripts.default_job.report import ABOUT, read_arms
from tests.unit.default_job_runs import write_experiment, write_run

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


def test_every_arm_is_explained() -> None:
    assert list(default_job.ARMS) == list(ABOUT)


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
    write_run(tmp_path / "async-0")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    default_job.measure("async", 0, 4, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_scored_are_the_chosen_models_that_were_kept_and_the_last_one_last(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", scores=(0.5,) * 9)  # it keeps a model after 2, 4, ... 18
    (run / "models" / ".20.abc").mkdir()  # half written
    assert default_job.to_score(run) == [2, 4, 6, 8, 10, 14, 18]
    (run / "models" / "18").rmdir()
    with pytest.raises(DataError, match=r"no model of iteration 18, its last, only \[2, 4, 6"):
        default_job.to_score(run)


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


def test_what_another_commit_measured_is_not_added_to(tmp_path: Path) -> None:
    output = tmp_path / "output"
    default_job.begin(output)
    default_job.begin(output)
    (output / "commit").write_text("c0ffee")
    with pytest.raises(DataError, match="was begun by commit c0ffee"):
        default_job.begin(output)


# ---- what is reported ---------------------------------------------------------------------------


def test_the_command_of_the_report_names_no_path(tmp_path: Path) -> None:
    assert default_job.command(read_arms(write_experiment(tmp_path / "experiment"))) == (
        "python -m benchmarks.default_job --arms async sync age-8 --seeds 0 1 --num-rollout 4"
    )


def test_the_page_and_the_report_that_are_there_agree() -> None:
    rows = {row["metric"]: row["value"] for row in json.loads(REPORT.read_bytes())["rows"]}
    found = cells(PAGE.read_text())
    assert {f"gain_{arm}" for arm in default_job.ARMS} <= found.keys()
    for metric, value in found.items():
        assert value == pytest.approx(rows[metric], abs=0.0501), metric


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
