"""The page of the default job: what is derived holds, and remarks stay with their measurement."""

import json
from pathlib import Path

import pytest

from agentrl.errors import DataError
from scripts.default_job import arms, report
from scripts.figures import COLOURS
from tests.unit.default_job_runs import write_experiment, write_run, write_scores


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    return write_experiment(tmp_path / "experiment")


def show(after: Path, experiment: Path) -> str:
    """Stands for the samples: which model they would be of."""
    return f"### {after.relative_to(experiment)}"


def write(experiment: Path, remarks: Path | None = None) -> str:
    output = experiment / "docs"
    report.write_page(experiment, output, remarks or experiment / "remarks.md", show)
    assert COLOURS[0] in (output / "default-job.svg").read_text()
    text = (output / "default-job.md").read_text()
    assert "\n\n\n" not in text
    return text.replace("\n", " ") if remarks is None else text


def test_the_page_says_what_was_measured(experiment: Path) -> None:
    text = write(experiment)
    assert "4 iterations of RL each" in text
    assert "play the same 100 questions" in text
    assert "| async | 2 | 40.0 % | 80.0 % | 40.0 |" in text
    # both are at 40 % from the start
    assert "| async than sync | - | 2.00 (1.60 to 2.50) | 2.00 (1.60 to 2.50) |" in text
    assert "### async-0/models/4" in text
    assert "after: async | after: sync | after: more-sft |" in text
    assert "60.0 % (50.0 to 70.0), 100 % searched" in text


def test_the_control_is_compared_at_equal_seconds(experiment: Path) -> None:
    text = write(experiment)
    # after 32 s async is at 0.8 and 0.4 + 0.4 * 32 / 40, sync at half that gain
    assert "After 32 s of training" in text
    assert "`async` 76.0 % (72.0 to 80.0), `sync` 58.0 % (56.0 to 60.0), `more-sft` 90.0 %" in text
    assert "| more-sft | 1 |" in text


def test_the_page_says_how_long_the_learner_waits(experiment: Path) -> None:
    text = write(experiment)
    assert "waits for episodes: `async` 25 %, `sync` 25 %." in text
    assert "would make `sync` about 4.00 times as fast" in text


def test_without_control_and_base_the_page_does_without_their_sentences(experiment: Path) -> None:
    for name in ("sync-0", "sync-1", "more-sft-0"):
        (experiment / name / "curve.json").unlink()
    text = write(experiment)
    assert "times as fast" not in text
    assert "nobody to demonstrate" not in text
    assert "| no-search |" in text


def test_runs_that_are_cut_or_not_scored_are_named_and_left_out(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(experiment / "async-2", status="interrupted", seed=2)
    write_scores(experiment / "async-2", 0.8, 0.5)
    write_run(experiment / "async-3", seed=3)  # never evaluated more closely
    write_run(experiment / "async-0.cut1", seed=0)
    write_run(experiment / "stranger-0", seed=0)
    found = arms.read_arms(experiment)
    assert [run.name for run in found["async"]] == ["async-0", "async-1"]
    assert list(found) == ["async", "sync", "no-search", "more-sft"]
    assert capsys.readouterr().err.splitlines() == [
        "async-2 is not complete and scored: left out",
        "async-3 is not complete and scored: left out",
    ]


def test_without_a_run_of_rl_there_is_no_page(experiment: Path) -> None:
    for path in experiment.glob("*-[0-9]/curve.json"):
        if path.parent.name != "more-sft-0":
            path.unlink()
    with pytest.raises(DataError, match="has no run of RL that is complete and scored"):
        arms.read_arms(experiment)


def test_runs_that_differ_in_more_than_their_seeds_are_no_arm(experiment: Path) -> None:
    write_scores(write_run(experiment / "async-2", seed=2, lr=0.2), 0.8, 0.5)
    with pytest.raises(DataError, match=r"async are no repetitions .*: lr: .*None.*0\.2"):
        arms.read_arms(experiment)


def test_what_is_set_differently_and_what_the_runs_say_themselves(experiment: Path) -> None:
    text = write(experiment)
    assert "| `lr` | - | `0.5` | - |" in text
    assert "prompt_data" not in text  # of the control, which is of another kind
    assert "+40.0 (30.4 to 49.6)" in text
    assert "40.0 % (30.9 to 49.8)" in text  # Wilson's interval of 40 of 100
    assert "the scored iterations (2, 4)" in text
    assert "beside them: 71.0 points at most." in text


# ---- who measured what --------------------------------------------------------------------------


def test_each_run_keeps_the_commit_that_it_was_measured_by(experiment: Path) -> None:
    text = write(experiment)
    alike = "async-0, async-1, sync-0, no-search-0, more-sft-0"
    assert f"| {alike} | a machine | c0ffee | c0ffee |" in text
    assert "| sync-1 | a machine | c0ffee | decade |" in text
    assert "| before | a machine | - | c0ffee |" in text


def test_a_run_of_which_nothing_was_noted_has_no_commit(experiment: Path) -> None:
    (experiment / "measured" / "sync-1.json").unlink()
    assert "| sync-1 | - | - | - |" in write(experiment)


def test_another_measurement_is_another_experiment(experiment: Path) -> None:
    def name() -> str:
        return report.experiment_id(report.read_measured(experiment, ["async-0"]))

    path, first = experiment / "measured" / "async-0.json", name()
    assert first == name()
    parts = json.loads(path.read_text())
    parts["trained"]["began"] = "2026-01-02T03:04:06+00:00"
    path.write_text(json.dumps(parts))
    assert name() != first


def test_remarks_stand_on_the_page_of_their_experiment_alone(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remarks = tmp_path / "remarks.md"
    remarks.write_text("# 2026-01-03, experiment 0123456789ab\n\nAll went well.\n")
    text = write(experiment, remarks)
    assert "Remarks" not in text
    assert "is on experiment 0123456789ab, not" in capsys.readouterr().err
    (id_,) = [line for line in text.splitlines() if line.startswith("All of it together")]
    remarks.write_text(f"# 2026-01-03, experiment {id_.split('`')[1]}\n\nAll went well.\n")
    assert "\n\n## Remarks of 2026-01-03\n\nAll went well.\n\n## What" in write(experiment, remarks)


def test_remarks_that_do_not_say_on_what_are_refused(tmp_path: Path) -> None:
    remarks = tmp_path / "remarks.md"
    remarks.write_text("All went well.\n")
    with pytest.raises(DataError, match=r"begins with 'All went well\.'; write"):
        report.read_remarks(remarks, "0123456789ab")
