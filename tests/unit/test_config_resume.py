"""Which run a program continues, and what it may not change about it."""

import json
import os
from pathlib import Path

import pytest

from agentrl.config.command_line import read_flags
from agentrl.config.resolve import layered, read
from agentrl.config.resume import find_run
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.errors import ConfigError


def leave_run(root: Path, name: str, *, status: str | None, age_s: int) -> Path:
    """What a run leaves behind, last written `age_s` seconds ago."""
    path = root / name
    path.mkdir()
    write_config(path / "config.toml", RunConfig(env="x.py:X", hf_checkpoint="m", lr=0.5))
    (path / "ledger.db").touch()
    os.utime(path / "ledger.db", (1e9 - age_s, 1e9 - age_s))
    if status is not None:
        (path / "summary.json").write_text(json.dumps({"status": status}))
    return path


def test_auto_takes_the_newest_run_that_is_not_complete(tmp_path: Path) -> None:
    leave_run(tmp_path, "done", status="complete", age_s=0)
    wanted = leave_run(tmp_path, "killed", status="running", age_s=1)
    leave_run(tmp_path, "older", status=None, age_s=2)
    (tmp_path / "no-run").mkdir()
    assert find_run("auto", str(tmp_path), None) == wanted


def test_auto_goes_on_with_what_crashed_and_passes_over_what_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave_run(tmp_path, "bad-data", status="failed", age_s=0)
    leave_run(tmp_path, "unhealthy", status="failed", age_s=1)
    leave_run(tmp_path, "done", status="complete", age_s=2)
    wanted = leave_run(tmp_path, "lost-engine", status="crashed", age_s=3)
    leave_run(tmp_path, "older", status="interrupted", age_s=4)
    assert find_run("auto", str(tmp_path), None) == wanted
    (said,) = caplog.messages
    assert f"passes over 2 runs, the newest {tmp_path}/bad-data" in said
    assert f"--resume {tmp_path}/bad-data continues it" in said


def test_a_failed_run_that_is_older_is_not_spoken_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = leave_run(tmp_path, "stopped", status="interrupted", age_s=0)
    leave_run(tmp_path, "bad-data", status="failed", age_s=1)
    assert find_run("auto", str(tmp_path), None) == wanted
    assert caplog.messages == []


def test_a_failed_run_is_continued_by_its_name(tmp_path: Path) -> None:
    run = leave_run(tmp_path, "bad-data", status="failed", age_s=0)
    assert find_run("auto", str(tmp_path), None) is None
    assert find_run("auto", str(tmp_path), "bad-data") == run
    assert find_run(str(run), "elsewhere", None) == run


def test_auto_begins_a_new_run_when_there_is_none_to_continue(tmp_path: Path) -> None:
    leave_run(tmp_path, "done", status="complete", age_s=0)
    assert find_run("auto", str(tmp_path), None) is None
    assert find_run("auto", str(tmp_path / "nowhere"), None) is None
    assert find_run("auto", str(tmp_path), "other") is None


def test_a_named_run_is_taken_whatever_its_status(tmp_path: Path) -> None:
    run = leave_run(tmp_path, "done", status="complete", age_s=0)
    assert find_run(str(run), "elsewhere", None) == run
    assert find_run("auto", str(tmp_path), "done") == run
    assert find_run("never", str(tmp_path), "done") is None


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.toml and no ledger\.db .* name a run"):
        find_run(str(tmp_path), "runs", None)


def test_a_run_that_lacks_a_file_is_told_which_and_what_to_do(tmp_path: Path) -> None:
    run = leave_run(tmp_path, "r", status="crashed", age_s=0)
    (run / "ledger.db").unlink()
    with pytest.raises(ConfigError, match=r"there is no ledger\.db .* ended before it began"):
        find_run(str(run), "runs", None)
    (run / "payload").mkdir()
    with pytest.raises(ConfigError, match=r"ledger\.db is missing .* what became of every group"):
        find_run(str(run), "runs", None)
    (run / "config.toml").unlink()
    (run / "ledger.db").touch()
    with pytest.raises(ConfigError) as error:
        find_run(str(run), "runs", None)
    assert "config.toml is missing" in str(error.value)
    assert "ledger.db" not in str(error.value)


def test_an_empty_configuration_of_a_run_is_told(tmp_path: Path) -> None:
    run = leave_run(tmp_path, "r", status="crashed", age_s=0)
    (run / "config.toml").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"its config\.toml is empty.* --load "):
        layered(read_flags(["--resume", str(run)]), "train_async")


def test_the_runs_own_configuration_lies_under_the_flags(tmp_path: Path) -> None:
    run = leave_run(tmp_path, "r", status="interrupted", age_s=0)
    flags = read_flags(["--resume", str(run), "--num-rollout", "9"])
    config, notes = layered(flags, "train_async")
    assert (config.lr, config.env, config.num_rollout) == (0.5, "x.py:X", 9)
    assert (config.run_dir, config.run_id) == (str(tmp_path), "r")
    assert notes == [f"continuing {run}"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "as in the run that is continued"),
        (["--device", "cpu"], "as it was set (--device)"),
    ],
)
def test_a_device_that_nobody_names_now_is_that_of_the_run(
    flags: list[str], reason: str, tmp_path: Path
) -> None:
    run = leave_run(tmp_path, "r", status="interrupted", age_s=0)
    config = RunConfig(env="x.py:X", hf_checkpoint="m", lr=0.5, device="cpu")
    write_config(run / "config.toml", config)
    notes = read(["--resume", str(run), *flags], "train_async").notes
    assert f"device cpu: {reason}" in notes


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--rollout-batch-size", "7"], "--rollout-batch-size 7, but"),
        (["--env", "y.py:Y"], "--env y.py:Y, but"),
        (["--rollout-seed", "1"], "was begun with 42"),
    ],
)
def test_what_the_groups_were_made_from_must_stay(
    tmp_path: Path, flags: list[str], said: str
) -> None:
    run = leave_run(tmp_path, "r", status="interrupted", age_s=0)
    with pytest.raises(ConfigError, match=said):
        layered(read_flags(["--resume", str(run), *flags]), "train_async")
