"""A checkpoint that cannot be read now is not a damaged one: nobody goes on without it."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.learner.checkpointing import restore_newest
from agentrl.learner.checkpoints import iterations
from tests.unit.checkpoint_ranks import Backend, saved, writer

#: Lives of a process that looks for the newest checkpoint. In each, the n-th look at the disk under
#: ROOT fails with ERRNO, until a life has fewer. Prints what each found, or the error's class.
LIVES = """
import json, os, sys
from pathlib import Path
from agentrl.learner.collective_errors import attempt
from agentrl.learner.checkpoints import newest_valid

root, code = Path(sys.argv[1]), int(sys.argv[2])
state = {"count": 0, "at": 0}

def watch(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(str(root)):
        state["count"] += 1
        if state["count"] == state["at"]:
            raise OSError(code, os.strerror(code), str(arguments[0]))

sys.addaudithook(watch)
found = []
while True:
    state.update(count=0, at=state["at"] + 1)
    newest, error = attempt(lambda: newest_valid(root))
    if state["count"] < state["at"]:
        break
    found.append(newest.iteration if error is None else [type(error).__name__, str(error)])
print(json.dumps(found))
"""


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
def test_no_failing_read_makes_a_run_go_on_from_the_checkpoint_before(
    code: int, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    saved(root, 1, 2)
    done = subprocess.run(
        [sys.executable, "-c", LIVES, str(root), str(code)],
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    found = json.loads(done.stdout)
    assert len(found) >= 6, "the root, three folders, the manifest, two files"
    assert {kind for kind, _ in found} == {"InfrastructureError"}
    assert all("iteration_0000002 cannot be read" in text for _, text in found[1:])


@pytest.mark.parametrize("what", ["a file", "a folder as its manifest"])
def test_what_can_never_be_read_is_no_checkpoint(what: str, tmp_path: Path) -> None:
    saved(tmp_path, 1)
    place = tmp_path / "iteration_0000002"
    if what == "a file":
        place.write_text("of a person")
    else:
        (place / "manifest.json").mkdir(parents=True)
    found = restore_newest(tmp_path, Backend())
    assert found is not None
    assert found.iteration == 1


def test_what_killed_saves_left_behind_is_gone_before_the_next_save(tmp_path: Path) -> None:
    backend = saved(tmp_path, 1)
    for number in (1, 2):
        rest = tmp_path / f".iteration_000000{number}.abc.partial"
        (rest / "state").mkdir(parents=True)
        (rest / "state" / "rank-0").write_bytes(b"room")
    writer(tmp_path, backend, after=restore_newest(tmp_path, backend))
    assert [path.name for path in tmp_path.iterdir()] == ["iteration_0000001"]


def test_a_run_that_is_refused_a_root_removes_nothing_from_it(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    rest = tmp_path / ".iteration_0000002.abc.partial"
    rest.mkdir()
    with pytest.raises(ValueError, match="does not continue"):
        writer(tmp_path, Backend())
    assert rest.is_dir()
    assert list(iterations(tmp_path)) == [1]
