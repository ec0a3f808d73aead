"""The run directory: who may enter it, what a killed program left, where its places are."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.layout import RUN_MARK, RunDir, with_run
from agentrl.config.record import RunRecord, read_record, write_record
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, EnvironmentSetupError


def config(root: Path, resume: str = "never", run_id: str = "r", **fields: Any) -> RunConfig:
    return RunConfig(run_dir=str(root), run_id=run_id, resume=resume, **fields)


KILLED = """
import os, signal, sys
from agentrl.cluster.layout import RunDir
from agentrl.config.run import RunConfig
with RunDir(RunConfig(run_dir=sys.argv[1], run_id="r")) as run:
    print(run.private, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(root: Path) -> Path:
    """The private folder of a program that was killed in the run directory `r`."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(root)], stdout=subprocess.PIPE, text=True, check=False
    )
    left = Path(done.stdout.strip())
    assert left.is_dir()
    return left


def test_the_private_folder_ends_with_the_program(tmp_path: Path) -> None:
    with RunDir(config(tmp_path)) as run:
        assert run.private.stat().st_mode & 0o777 == 0o700
        assert read_record(run.path) == RunRecord("r", str(run.private), {}, run.record.token)
        run.spec.write_text("{}")
    assert not run.private.exists()
    assert read_record(run.path) == RunRecord("r", "", {}, run.record.token)


@pytest.mark.parametrize("num_bytes", [0, 1000, 64 * 1024, 10**6])
def test_the_last_lines_of_a_log_are_found_without_reading_all_of_it(
    tmp_path: Path, num_bytes: int
) -> None:
    with RunDir(config(tmp_path)) as run:
        assert run.log_tail("engine-0") == "(no log)"
        Path(run.log("engine-0")).write_bytes(b"x" * num_bytes + b"\nlast but one\nlast \xff\n")
        assert run.log_tail("engine-0", 2) == "    last but one\n    last \ufffd"
        assert len(run.log_tail("engine-0")) < 70_000


def test_a_wait_for_a_killed_program_s_processes_can_be_ended(tmp_path: Path) -> None:
    asked = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise KeyboardInterrupt

    sleep = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        sleep,
        env={RUN_MARK: str(tmp_path / "r")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as left:
        assert left.stdout is not None
        left.stdout.readline()
        with pytest.raises(KeyboardInterrupt):
            RunDir(config(tmp_path), check).__enter__()
        left.kill()
    with RunDir(config(tmp_path, resume="auto")):  # and nothing is locked
        pass


def test_what_a_killed_program_left_is_removed_by_the_one_that_continues_it(tmp_path: Path) -> None:
    left = killed(tmp_path)
    (left / "keys").mkdir()
    (left / "keys" / "secret").write_text("x")
    with RunDir(config(tmp_path, resume=str(tmp_path / "r"))) as run:
        assert not left.exists()
        assert run.private.is_dir()


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    for name in ("agentrl-1", "precious"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "agentrl-2").symlink_to(tmp_path / "precious")
    (tmp_path / "agentrl-3").mkdir(mode=0o755)
    for name, stays in (
        ("agentrl-1", False),
        ("agentrl-2", True),
        ("agentrl-3", True),
        ("precious", True),
        ("nowhere", False),
    ):
        write_record(tmp_path / "r", RunRecord("r", str(tmp_path / name)))
        with RunDir(config(tmp_path, resume=str(tmp_path / "r"))):
            assert (tmp_path / name).exists() == stays


def test_an_attempt_that_ended_before_its_ledger_is_begun_under_auto_alone(tmp_path: Path) -> None:
    left = killed(tmp_path)
    with pytest.raises(ConfigError, match="ended before it began; begin it: --resume auto"):
        RunDir(config(tmp_path)).__enter__()
    with RunDir(config(tmp_path, resume="auto")) as run:
        assert run.id == "r"
        assert not left.exists()


def test_a_run_with_a_ledger_is_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "ledger.db").touch()
    for resume in ("never", "auto"):
        with pytest.raises(ConfigError, match=f"continue it: --resume {tmp_path}/r"):
            RunDir(config(tmp_path, resume=resume)).__enter__()


def test_two_programs_do_not_work_on_one_run(tmp_path: Path) -> None:
    with RunDir(config(tmp_path)) as run:
        for resume in ("auto", str(run.path)):
            with pytest.raises(EnvironmentSetupError, match="another program"):
                RunDir(config(tmp_path, resume=resume)).__enter__()
        assert run.private.is_dir()
    with RunDir(config(tmp_path, resume="auto")):
        pass


def test_a_renamed_run_keeps_its_id_and_its_places_follow_the_folder(tmp_path: Path) -> None:
    with RunDir(config(tmp_path, run_id="old")) as run:
        token = run.record.token
    moved = run.path.rename(tmp_path / "new")
    with RunDir(config(tmp_path, resume=str(moved), run_id="old")) as run:
        assert (run.id, run.path) == ("old", moved)
        told = with_run(config(tmp_path), run)
        assert (told.run_id, told.save, told.save_hf) == ("old", f"{moved}/recovery", f"{moved}/hf")
        assert read_record(moved) == RunRecord("old", str(run.private), {}, token)
        chosen = with_run(config(tmp_path, save="/a", save_hf="/b"), run)
        assert (chosen.save, chosen.save_hf) == ("/a", "/b")
