"""Which run writes to a folder of checkpoints: `agentrl/config/save_lock.py`."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from agentrl.cli.train import main
from agentrl.cluster.launch import launch
from agentrl.config import save_lock
from agentrl.config.record import RunRecord, write_record
from agentrl.config.run import RunConfig
from agentrl.config.save_lock import FILE, check_unlocked, locked
from agentrl.errors import EnvironmentSetupError

FIRST, SECOND = RunRecord("first", token="1"), RunRecord("second", token="2")
#: Holds the folder of its argument until its input ends.
HOLDER = """
import sys
from pathlib import Path
from agentrl.config import save_lock
from agentrl.config.record import RunRecord
from agentrl.config.save_lock import locked
with locked(Path(sys.argv[1]), RunRecord("first", token="1")):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the folder `save`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "save")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def refused(folder: Path, record: RunRecord) -> str:
    with pytest.raises(EnvironmentSetupError) as caught, locked(folder, record):
        pass
    return str(caught.value)


def lay(folder: Path, *, age_s: float, **changes: object) -> Path:
    """A lock of the run `first` as another machine left it, touched so long ago."""
    with locked(folder, FIRST):
        told = msgspec.json.decode((folder / FILE).read_bytes())
    path = folder / FILE
    path.write_bytes(msgspec.json.encode({**told, "machine": "another", **changes}))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_a_second_run_is_refused_by_the_name_of_the_first_until_that_has_ended(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    save = tmp_path / "save"
    for record in (SECOND, FIRST):  # one run in two programs is two runs
        said = refused(save, record)
        assert f"--save {save}: the run first (process {holder.pid} on " in said
        assert f"choose another --save (if it has ended, remove {save / FILE})" in said
    assert holder.stdin is not None
    holder.stdin.close()
    assert holder.wait(60) == 0
    assert list(save.iterdir()) == []
    with locked(save, SECOND):
        pass


def test_what_a_killed_program_holds_is_free_on_its_machine(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    holder.kill()
    holder.wait(60)
    assert (tmp_path / "save" / FILE).is_file()
    with locked(tmp_path / "save", SECOND):
        assert "the run second" in refused(tmp_path / "save", FIRST)
    assert list((tmp_path / "save").iterdir()) == []


def test_another_process_of_the_same_number_holds_nothing(tmp_path: Path) -> None:
    with locked(tmp_path, FIRST):
        told = msgspec.json.decode((tmp_path / FILE).read_bytes())
    (tmp_path / FILE).write_bytes(msgspec.json.encode({**told, "started": 1}))
    with locked(tmp_path, SECOND):
        pass


def test_a_holder_elsewhere_lives_as_long_as_it_touches_its_lock(tmp_path: Path) -> None:
    path = lay(tmp_path, age_s=60)
    assert "the run first" in refused(tmp_path, SECOND)
    with locked(tmp_path, FIRST):  # the run itself, continued on this machine
        pass
    assert not path.exists()
    lay(tmp_path, age_s=3600)
    with locked(tmp_path, SECOND):
        pass


def test_a_lock_that_says_nothing_is_held_while_it_is_young(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.touch()
    assert "a run that has just begun" in refused(tmp_path, SECOND)
    os.utime(path, (0, 0))
    with locked(tmp_path, SECOND):
        pass


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns far more often than usual."""
    was = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(was)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("is_left", [False, True])
def test_of_many_programs_at_once_one_gets_the_folder(tmp_path: Path, is_left: bool) -> None:
    for number in range(100):
        folder = tmp_path / str(number)
        if is_left:
            folder.mkdir()
            lay(folder, age_s=3600)
        assert race(folder) == 1
        assert list(folder.iterdir()) == []


def race(folder: Path) -> int:
    """How many of eight programs got it."""
    got, all_there, all_tried = [], threading.Barrier(8), threading.Barrier(8)

    def run(number: int) -> None:
        all_there.wait(60)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(folder, RunRecord(f"r{number}", token=f"{number}x")))
                got.append(number)
            except EnvironmentSetupError:
                pass
            all_tried.wait(60)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(got)


def test_two_rows_of_locks_are_seen_by_the_later_of_their_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program looks at a lock that was left and sleeps; a second takes it over and ends; a third
    finds no lock and begins anew; the first wakes up."""
    lay(tmp_path, age_s=3600)
    third = ExitStack()
    real = save_lock._create

    def create(path: Path, ours: save_lock._Holder) -> None:
        monkeypatch.setattr(save_lock, "_create", real)
        with locked(tmp_path, SECOND):
            pass
        third.enter_context(locked(tmp_path, FIRST))
        real(path, ours)

    monkeypatch.setattr(save_lock, "_create", create)
    with third:
        assert "the run first" in refused(tmp_path, SECOND)
        assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_taken_over_is_left_to_its_new_holder(tmp_path: Path) -> None:
    with locked(tmp_path, FIRST):
        lay(tmp_path / "other", age_s=0).rename(tmp_path / FILE)
    assert (tmp_path / FILE).is_file()


def test_a_dry_run_tells_of_the_run_that_saves_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry = ["--preset", "search-r1-local", "--dry-run", "--save", str(tmp_path / "save")]
    with locked(tmp_path / "save", FIRST):
        assert main(dry, "train_async") == 3
        assert "the run first (process" in capsys.readouterr().err
    assert main(dry, "train_async") == 0
    assert list((tmp_path / "save").iterdir()) == []


def test_a_run_that_goes_on_knows_its_own_lock(tmp_path: Path) -> None:
    save, run = tmp_path / "save", tmp_path / "first"
    run.mkdir()
    write_record(run, FIRST)
    lay(save, age_s=60)
    check_unlocked(RunConfig(save=str(save), resume=str(run), run_id="first"))
    with pytest.raises(EnvironmentSetupError, match="the run first"):
        check_unlocked(RunConfig(save=str(save), run_id="second"))
    check_unlocked(RunConfig(save=str(save), run_id="second", eval_only=True))


def test_a_run_holds_its_folder_from_its_first_moment_to_its_last(tmp_path: Path) -> None:
    config = RunConfig(save=str(tmp_path / "save"), run_dir=str(tmp_path), env="no-such-env")
    with locked(tmp_path / "save", FIRST), pytest.raises(EnvironmentSetupError, match="run first"):
        launch(msgspec.structs.replace(config, run_id="early"), 0.0)
    assert not (tmp_path / "early" / "config.toml").exists()
    assert launch(msgspec.structs.replace(config, run_id="late"), 0.0) == 2
    assert (tmp_path / "late" / "config.toml").exists()
    assert list((tmp_path / "save").iterdir()) == []
