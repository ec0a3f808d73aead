"""A checkpoint is whole or not there, whatever happens to the disk or to the process."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.errors import InfrastructureError
from agentrl.learner.checkpoints import newest_valid
from tests.unit.checkpoint_ranks import hidden, newest, saved, writer

pytestmark = pytest.mark.slow


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
root, how, behind = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"

class Backend:
    is_source = True
    def save_state(self, directory):
        try:
            for name in ("weights", "moments"):
                (directory / name).write_bytes(name.encode() * 1000)
        except OSError as error:
            raise InfrastructureError(str(error)) from error
        return {}
    def copy_state(self):
        return self
    def write(self, directory):
        self.save_state(directory)
    def join(self, directory, parts):
        return {}
    def all_gather(self, value):
        return [value]
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
        if behind:
            writer.begin_save(2, version=2)
            writer.end_save(waits=True)
        else:
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


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("how", ["kill", "fail"])
def test_no_moment_of_death_and_no_failing_disk_costs_the_checkpoint_before(
    how: str, behind: bool, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIVES, str(tmp_path / "root"), how, str(behind)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == sorted(found)
    assert found.count(1) >= 10, "before the rename the one before is the newest"
    assert found.count(2) >= 2, "after it the new one"
