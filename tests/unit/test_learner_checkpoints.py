"""A checkpoint is whole or not there, whatever happens to the disk or to the process."""

import json
import logging
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.errors import AgentRLError, ConfigError, DataError, InfrastructureError
from agentrl.learner.checkpointing import CheckpointWriter, restore_newest
from agentrl.learner.checkpoints import Checkpoint, iterations, newest_valid


class Ranks:
    """Collectives between the threads of several ranks."""

    def __init__(self, size: int) -> None:
        self.slots: list[bytes | None] = [None] * size
        self.barrier = threading.Barrier(size, timeout=30)


class Backend:
    """A state of `weights` bytes in a file of each rank; `fails` is raised by each rank instead."""

    def __init__(self, ranks: Ranks | None = None, rank: int = 0) -> None:
        self.is_source = rank == 0
        self.weights = b""
        self.moments = b"moments" * 100
        self.fails: Exception | None = None
        self._ranks = ranks or Ranks(1)
        self._rank = rank

    def save_state(self, directory: Path) -> None:
        if self.fails is not None:
            raise self.fails
        (directory / f"rank-{self._rank}").write_bytes(self.weights)
        (directory / "more").mkdir(exist_ok=True)
        (directory / "more" / f"rank-{self._rank}").write_bytes(self.moments)
        self._ranks.barrier.wait()

    def load_state(self, directory: Path) -> None:
        self.weights = (directory / f"rank-{self._rank}").read_bytes()

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        self._ranks.slots[self._rank] = data
        self._ranks.barrier.wait()
        found = self._ranks.slots[0]
        self._ranks.barrier.wait()
        assert found is not None
        return found


def writer(root: Path, backend: Backend, after: Checkpoint | None = None) -> CheckpointWriter:
    opened = CheckpointWriter(root, backend, run_id="run", config_digest="abc")
    opened.begin(after)
    return opened


def saved(root: Path, *numbers: int) -> Backend:
    """A backend that has saved these iterations, each with weights of its own."""
    backend = Backend()
    opened = writer(root, backend)
    for number in numbers:
        backend.weights = b"weights of %d" % number
        opened.save(number, version=10 * number)
    return backend


def hidden(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith(".")]


def newest(root: Path) -> int:
    found = newest_valid(root)
    assert found is not None
    return found.iteration


# ---- writing, keeping, finding ------------------------------------------------------------------


def test_what_was_saved_is_found_and_loaded(tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    saved(root, 3, 12)
    again = Backend()
    found = restore_newest(root, again)
    assert found is not None
    assert found.directory == root / "iteration_0000012"
    assert (found.iteration, found.version) == (12, 120)
    assert (found.manifest.run_id, found.manifest.config_digest) == ("run", "abc")
    assert set(found.manifest.files) == {"state/rank-0", "state/more/rank-0"}
    assert again.weights == b"weights of 12"


def test_an_empty_or_missing_root_holds_nothing(tmp_path: Path) -> None:
    assert restore_newest(tmp_path, Backend()) is None
    assert restore_newest(tmp_path / "none", Backend()) is None


def test_the_newest_are_kept_and_the_rest_goes(tmp_path: Path) -> None:
    (tmp_path / ".iteration_0000001.abc.partial" / "state").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("of a person")
    saved(tmp_path, 1, 2, 9_999_999, 10_000_000)
    assert list(iterations(tmp_path)) == [9_999_999, 10_000_000]
    assert hidden(tmp_path) == []
    assert (tmp_path / "notes.txt").exists()


def test_an_iteration_is_written_once(tmp_path: Path) -> None:
    backend = Backend()
    opened = writer(tmp_path, backend)
    first = opened.save(4, version=1)
    backend.weights = b"others"
    assert opened.save(4, version=2) is first
    assert (first.state / "rank-0").read_bytes() == b""


def test_a_run_that_begins_refuses_a_root_of_another(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    with pytest.raises(ConfigError, match=r"1 checkpoints .* newest of iteration 5"):
        writer(tmp_path, Backend())
    elsewhere = tmp_path / "elsewhere"
    found = newest_valid(tmp_path)
    writer(elsewhere, Backend(), after=found).save(6, version=1)
    assert newest(elsewhere) == 6


def test_going_on_from_an_older_one_sets_the_newer_aside(tmp_path: Path) -> None:
    saved(tmp_path, 5, 6)
    shard = tmp_path / "iteration_0000006" / "state" / "rank-0"
    whole = shard.read_bytes()
    shard.write_bytes(b"")
    backend = Backend()
    opened = writer(tmp_path, backend, after=restore_newest(tmp_path, backend))
    assert list(iterations(tmp_path)) == [5]
    (aside,) = hidden(tmp_path)
    (tmp_path / aside / "state" / "rank-0").write_bytes(whole)
    assert newest(tmp_path) == 5, "a lineage that was given up came back"
    opened.save(6, version=70)
    assert newest_valid(tmp_path) == opened.save(6, version=70)
    assert hidden(tmp_path) == []


# ---- damage -------------------------------------------------------------------------------------


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]


def other_format(data: bytes) -> bytes:
    return data.replace(b'"format":1', b'"format":2', 1)


DAMAGE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "truncated": (
        "state/rank-0",
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "state/rank-0 has 11 bytes, not 12",
    ),
    "flipped": (
        "state/more/rank-0",
        lambda path: path.write_bytes(flipped(path.read_bytes(), 333)),
        "state/more/rank-0 is damaged",
    ),
    "missing": ("state/rank-0", lambda path: path.unlink(), "state/rank-0 is missing"),
    "linked": (
        "state/rank-0",
        lambda path: path.symlink_to(path.rename(path.parent / "elsewhere")),
        "state/rank-0 is missing",
    ),
    "no manifest": ("manifest.json", lambda path: path.unlink(), "manifest.json is missing"),
    "torn manifest": (
        "manifest.json",
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "manifest.json cannot be read",
    ),
    "not text": (
        "manifest.json",
        lambda path: path.write_bytes(b'{"format":1,"xxh3_64":"\xff'),
        "manifest.json cannot be read",
    ),
    "other format": (
        "manifest.json",
        lambda path: path.write_bytes(other_format(path.read_bytes())),
        "manifest.json is of format 2, this program reads format 1",
    ),
    "changed by hand": (
        "manifest.json",
        lambda path: path.write_bytes(path.read_bytes().replace(b'"run"', b'"RUN"')),
        "manifest.json does not match its own checksum",
    ),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 1, 2)
    name, act, words = DAMAGE[damage]
    act(tmp_path / "iteration_0000002" / name)
    backend = Backend()
    with caplog.at_level(logging.WARNING):
        found = restore_newest(tmp_path, backend)
    assert found is not None
    assert (found.iteration, backend.weights) == (1, b"weights of 1")
    (said,) = (record.getMessage() for record in caplog.records)
    assert f"checkpoint skipped: {tmp_path / 'iteration_0000002'}: {words}" in said


def test_no_flipped_bit_goes_unseen(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    directory = tmp_path / "iteration_0000002"
    for path in [p for p in directory.rglob("*") if p.is_file()]:
        whole = path.read_bytes()
        for at in range(len(whole)):
            path.write_bytes(flipped(whole, at))
            assert newest(tmp_path) == 1, f"byte {at} of {path.name}"
        path.write_bytes(whole)
    assert newest(tmp_path) == 2


def test_a_directory_under_another_number_is_not_taken(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    (tmp_path / "iteration_0000002").rename(tmp_path / "iteration_0000003")
    assert newest(tmp_path) == 1


def test_when_all_are_damaged_nothing_begins_by_itself(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    for directory in iterations(tmp_path).values():
        (directory / "state" / "rank-0").unlink()
    with pytest.raises(DataError, match="none of the 2 checkpoints"):
        restore_newest(tmp_path, Backend())


# ---- disks and processes that fail --------------------------------------------------------------


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_at_the_manifest_leaves_all_as_it_was(tmp_path: Path) -> None:
    backend = saved(tmp_path, 1)
    opened = writer(tmp_path, backend, after=newest_valid(tmp_path))
    backend.moments = b""
    with (
        files_of_at_most(100),
        pytest.raises(InfrastructureError, match=r"no checkpoint of iteration 2 in .*too large"),
    ):
        opened.save(2, version=2)
    assert newest(tmp_path) == 1
    assert hidden(tmp_path) == []


#: Lives of a process that saves iteration 2 after 1. In each, the n-th disk operation under ROOT is
#: its last (`kill`) or fails (`fail`), until a life has fewer. Prints what is found after each.
LIVES = """
import errno, json, os, shutil, signal, sys, traceback
from pathlib import Path
from agentrl.errors import InfrastructureError
from agentrl.learner.checkpointing import CheckpointWriter
from agentrl.learner.checkpoints import newest_valid

OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
root, how = Path(sys.argv[1]), sys.argv[2]

class Backend:
    is_source = True
    def save_state(self, directory):
        try:
            for name in ("weights", "moments"):
                (directory / name).write_bytes(name.encode() * 1000)
        except OSError as error:
            raise InfrastructureError(str(error)) from error
    def load_state(self, directory):
        pass
    def broadcast_bytes(self, data):
        return data

def opened():
    writer = CheckpointWriter(root, Backend(), run_id="run", keep=1)
    writer.begin(newest_valid(root))
    return writer

def life(n):
    writer, count = opened(), 0
    def watch(event, arguments):
        nonlocal count
        if event in OPERATIONS and str(arguments[0]).startswith(str(root)):
            count += 1
            if count == n and how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if count == n:
                raise OSError(errno.ENOSPC, "no space left", str(arguments[0]))
    sys.addaudithook(watch)
    try:
        writer.save(2, version=2)
        os._exit(0 if count < n else 1)
    except InfrastructureError as error:
        assert str(root) in str(error) and "no space left" in str(error)
        os._exit(3)

found = []
while True:
    shutil.rmtree(root, ignore_errors=True)
    opened().save(1, version=1)
    child = os.fork()
    if child == 0:
        try:
            life(len(found) + 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        break
    assert status in ((-signal.SIGKILL,) if how == "kill" else (1, 3)), status
    found.append(newest_valid(root).iteration)
    assert status != 3 or found[-1] == 1, "said to have failed, and yet it is there"
    opened().save(3, version=3)
    assert newest_valid(root).iteration == 3
    assert os.listdir(root) == ["iteration_0000003"], os.listdir(root)
print(json.dumps(found))
"""


@pytest.mark.parametrize("how", ["kill", "fail"])
def test_no_moment_of_death_and_no_failing_disk_costs_the_checkpoint_before(
    how: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIVES, str(tmp_path / "root"), how],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == sorted(found)
    assert found.count(1) >= 10, "before the rename the one before is the newest"
    assert found.count(2) >= 2, "after it the new one"


def test_finding_a_checkpoint_loads_neither_torch_nor_megatron() -> None:
    code = (
        "import sys, agentrl.learner.checkpointing\n"
        "assert not {'torch', 'megatron', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ---- several ranks ------------------------------------------------------------------------------


def on_two_ranks(play: Callable[[Backend], Any]) -> list[Any]:
    """What each rank made of `play`, or the error it raised."""
    ranks = Ranks(2)

    def one(rank: int) -> Any:
        try:
            return play(Backend(ranks, rank))
        except AgentRLError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(one, (0, 1)))


def test_all_ranks_write_into_one_checkpoint_and_load_it_again(tmp_path: Path) -> None:
    def play(backend: Backend) -> tuple[Checkpoint, Checkpoint | None, bytes]:
        own = backend.weights = b"of the source" if backend.is_source else b"of the other"
        written = writer(tmp_path, backend).save(7, version=3)
        backend.weights = b""
        found = restore_newest(tmp_path, backend)
        assert backend.weights == own
        return written, found, own

    (first, found, _), (second, found_too, _) = on_two_ranks(play)
    assert first == second == found == found_too
    assert {"state/rank-0", "state/rank-1"} <= set(first.manifest.files)


def test_what_fails_on_the_source_is_raised_on_every_rank(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("a file where a directory should be")

    def play(backend: Backend) -> Checkpoint:
        return writer(root, backend).save(1, version=0)

    first, second = on_two_ranks(play)
    assert isinstance(first, InfrastructureError)
    assert isinstance(second, InfrastructureError)
    assert "no checkpoint of iteration 1" in str(first)
    assert "learner rank 0" in str(second)


def test_a_refusal_keeps_its_class_on_every_rank(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    refusals = on_two_ranks(lambda backend: writer(tmp_path, backend))
    assert [type(error) for error in refusals] == [ConfigError, ConfigError]


def test_what_ranks_could_not_write_is_removed(tmp_path: Path) -> None:
    def play(backend: Backend) -> Checkpoint:
        backend.fails = InfrastructureError("disk full")
        return writer(tmp_path, backend).save(1, version=0)

    assert all("disk full" in str(error) for error in on_two_ranks(play))
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_is_readable_by_a_person(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    found = msgspec.json.decode((tmp_path / "iteration_0000002" / "manifest.json").read_bytes())
    assert found["manifest"]["iteration"] == 2
    assert found["manifest"]["files"]["state/rank-0"]["num_bytes"] == len(b"weights of 2")
