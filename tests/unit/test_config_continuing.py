"""Continuing a run: under the same words it is the same run, wherever its folder lies by now."""

import os
from pathlib import Path

import pytest

from agentrl.cluster.layout import RunDir
from agentrl.config.command_line import read_flags
from agentrl.config.record import RunRecord, write_record
from agentrl.config.resolve import layered
from agentrl.config.resume import find_run
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.errors import ConfigError


def resolve(*argv: str) -> RunConfig:
    return layered(read_flags(list(argv)), "train_async")[0]


def begin(path: Path, *argv: str) -> Path:
    """What a run with these flags leaves in `path`."""
    path.mkdir(parents=True)
    write_config(path / "config.toml", resolve(*argv))
    (path / "ledger.db").touch()
    return path


ROWS = ["--hf-checkpoint", "m", "--prompt-data", "rows.jsonl"]


@pytest.mark.parametrize("keys", [[], ["--input-key", "input"], ["--input-key", "q"]])
@pytest.mark.parametrize("label", [[], ["--label-key", "answer"]])
def test_a_run_of_rows_is_continued_by_its_own_name_alone(
    tmp_path: Path, keys: list[str], label: list[str]
) -> None:
    run = begin(tmp_path / "r", *ROWS, *keys, *label)
    once = resolve("--resume", str(run))
    write_config(run / "config.toml", once)
    assert resolve("--resume", str(run)) == once
    assert once.env_args == resolve(*ROWS, *keys, *label).env_args


@pytest.mark.parametrize("flag", ["--input-key", "--label-key"])
def test_a_run_of_rows_keeps_its_keys(tmp_path: Path, flag: str) -> None:
    run = begin(tmp_path / "r", *ROWS, "--input-key", "q", "--label-key", "a")
    with pytest.raises(ConfigError, match=f"{flag} other, but"):
        resolve("--resume", str(run), flag, "other")


def test_a_key_given_now_wins_over_that_of_the_file(tmp_path: Path) -> None:
    run = begin(tmp_path / "r", *ROWS, "--input-key", "q", "--label-key", "a")
    config = resolve("--config", str(run / "config.toml"), "--input-key", "other")
    assert config.env_args == {"input_key": "other", "label_key": "a"}


# ---- where checkpoints lie ----------------------------------------------------------------------


def test_the_folder_of_the_checkpoints_is_the_same_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = begin(tmp_path / "r", *ROWS, "--save", "kept", "--save-hf", "out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = resolve("--resume", str(run))
    assert (config.save, config.save_hf) == (str(tmp_path / "kept"), str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=f"--save {tmp_path}/elsewhere/kept, but"):
        resolve("--resume", str(run), "--save", "kept")


def test_the_folder_of_the_checkpoints_may_be_said_again_but_not_changed(tmp_path: Path) -> None:
    run = begin(tmp_path / "r", *ROWS)
    assert resolve("--resume", str(run), "--save", str(run / "recovery")).save is not None
    with pytest.raises(ConfigError, match=f"begun with {run}/recovery"):
        resolve("--resume", str(run), "--save", str(tmp_path / "new"))


# ---- which run ----------------------------------------------------------------------------------


def test_a_run_whose_folder_was_renamed_is_the_run_it_was(tmp_path: Path) -> None:
    run = begin(tmp_path / "runs" / "old", *ROWS)
    write_record(run, RunRecord("old"))
    moved = run.rename(tmp_path / "new")
    config = resolve("--resume", str(moved))
    assert (config.run_id, config.resume) == ("old", str(moved))


def test_a_link_to_a_run_is_that_run(tmp_path: Path) -> None:
    run = begin(tmp_path / "runs" / "r", *ROWS)
    (tmp_path / "latest").symlink_to(run)
    config = resolve("--resume", str(tmp_path / "latest"))
    assert (config.run_id, config.resume) == ("r", str(run))
    assert config.run_dir == str(tmp_path / "runs")


def test_an_attempt_that_ended_before_it_began_is_begun_by_auto(tmp_path: Path) -> None:
    (begin(tmp_path / "x", *ROWS) / "ledger.db").unlink()
    flags = [*ROWS, "--run-dir", str(tmp_path), "--run-id", "x"]
    _, notes = layered(read_flags([*flags, "--resume", "auto"]), "train_async")
    assert f"there is nothing to continue in {tmp_path / 'x'}; a new run begins" in notes[0]
    config = resolve(*flags, "--resume", "auto")
    assert (config.resume, config.is_continued) == ("auto", False)
    with pytest.raises(ConfigError, match="--run-id x --resume auto begins it"):
        resolve("--resume", str(tmp_path / "x"))


def test_auto_leaves_a_run_alone_that_only_evaluates(tmp_path: Path) -> None:
    scored = begin(tmp_path / "scored", *ROWS, "--eval-only")
    assert find_run("auto", str(tmp_path), None) is None
    trained = begin(tmp_path / "trained", *ROWS)
    os.utime(trained / "ledger.db", (1, 1))
    assert find_run("auto", str(tmp_path), None) == trained
    assert find_run("auto", str(tmp_path), None, eval_only=True) == scored


def test_no_run_is_continued_as_one_that_only_evaluates(tmp_path: Path) -> None:
    run = begin(tmp_path / "r", *ROWS)
    with pytest.raises(ConfigError, match="--eval-only True, but"):
        resolve("--resume", str(run), "--eval-only")


def test_the_newest_run_is_the_one_whose_ledger_was_written_last(tmp_path: Path) -> None:
    wanted, other = begin(tmp_path / "a", *ROWS), begin(tmp_path / "b", *ROWS)
    (wanted / "ledger.db-wal").touch()
    for path, age_s in ((wanted / "ledger.db", 9), (wanted / "ledger.db-wal", 1)):
        os.utime(path, (1e9 - age_s, 1e9 - age_s))
    os.utime(other / "ledger.db", (1e9 - 5, 1e9 - 5))
    assert find_run("auto", str(tmp_path), None) == wanted


# ---- files that were edited ---------------------------------------------------------------------


def test_a_continued_run_says_which_file_was_edited_since_and_when(tmp_path: Path) -> None:
    code, rows = tmp_path / "mine.py", tmp_path / "rows.jsonl"
    code.write_text("class Mine: ...\n")
    rows.write_text('{"input": "a"}\n')
    flags = ["--hf-checkpoint", "m", "--env", f"{code}:Mine", "--prompt-data", f"{rows}@[0:1]"]
    with RunDir(resolve(*flags, "--run-dir", str(tmp_path), "--run-id", "r")) as run:
        write_config(run.path / "config.toml", resolve(*flags))
        (run.path / "ledger.db").touch()
    again = ["--resume", str(tmp_path / "r")]
    assert layered(read_flags(again), "train_async")[1] == [f"continuing {run.path}"]

    code.write_text("class Mine: more = 1\n")
    os.utime(code, (1e9, 1e9))
    _, (_, note) = layered(read_flags(again), "train_async")
    assert note.startswith(f"--env {code}:Mine: the file was edited after")
    assert "written 2001-09-0" in note
    rows.write_text('{"input": "b"}\n')
    assert len(layered(read_flags(again), "train_async")[1]) == 3

    with RunDir(resolve(*again)):  # it goes on with these
        pass
    assert layered(read_flags(again), "train_async")[1] == [f"continuing {run.path}"]
