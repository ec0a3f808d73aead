"""A worker that does not answer: the line that holds its event loop is told before it is killed."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from agentrl.cluster.events import RunState
from agentrl.cluster.host import ExitNotice
from agentrl.cluster.standstill import STACKS, Standstill, stacks_of
from agentrl.cluster.watch import Watch
from agentrl.errors import RestartsSpentError

SLEEPS = "import time\ndef score():\n    print('here', flush=True); time.sleep(600)\n"
#: One call of C code, which lets no other thread of Python run.
HOLDS_THE_INTERPRETER = (
    "import re\ndef score():\n    print('here', flush=True); re.match('(a+)+$', 'a' * 64 + 'b')\n"
)
PROGRAM = "from agentrl.cluster.standstill import listen\nlisten()\nimport b_hang\nb_hang.score()\n"


@contextmanager
def hanging(folder: Path, code: str) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """A process that is in `score` of a file of the user's, and its log."""
    (folder / "b_hang.py").write_text(code)
    log = folder / "worker-0.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{PROGRAM}"],
            stdout=stream,
            stderr=stream,
        )
    try:
        while b"here" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
        yield process, log
    finally:
        process.kill()
        process.wait()


def look(process: "subprocess.Popen[bytes]", log: Path) -> Standstill:
    async def ask() -> bool:
        process.send_signal(STACKS)
        return True

    return anyio.run(stacks_of, log, ask)


@pytest.mark.parametrize("code", [SLEEPS, HOLDS_THE_INTERPRETER], ids=["sleeps", "holds"])
def test_the_line_of_the_users_that_holds_a_process_is_found_in_its_log(
    tmp_path: Path, code: str
) -> None:
    with hanging(tmp_path, code) as (process, log):
        stood = look(process, log)
        assert process.poll() is None, "to look does not end it"
    assert stood.place == f"score ({tmp_path / 'b_hang.py'}:3)"
    assert any("b_hang.py" in line for line in stood.stack)
    assert "anyio.to_thread.run_sync" in stood.words()


def test_a_process_that_is_stopped_holds_nobody_up(tmp_path: Path) -> None:
    with hanging(tmp_path, SLEEPS) as (process, log):
        process.send_signal(signal.SIGSTOP)
        stood = look(process, log)
    assert stood == Standstill()
    assert stood.words() == "where it stood could not be seen"


def test_a_log_that_is_not_to_be_seen_from_here_is_asked_for_all_the_same(tmp_path: Path) -> None:
    asked = []

    async def ask() -> bool:
        asked.append(1)
        return True

    assert anyio.run(stacks_of, tmp_path / "elsewhere.log", ask) == Standstill()
    assert asked


class OneWorker:
    """The processes of a run that has one worker; and its run directory, and its slots."""

    learners: tuple[str, ...] = ()
    spec = "spec"
    #: None can do its work.
    roster = SimpleNamespace(can_stay_down=lambda name: False, lack=lambda name: "")

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process, self._log = process, log

    async def signal(self, name: str, incarnation: str, number: int) -> bool:
        self._process.send_signal(number)
        return True

    def learner_life(self, notice: ExitNotice) -> None:
        return None

    def log(self, name: str) -> str:
        return str(self._log)


def test_a_run_that_ends_for_a_worker_that_stood_still_says_in_which_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hanging(tmp_path, SLEEPS) as (process, log):
        worker = OneWorker(process, log)
        parts: Any = (worker, worker, worker, None, RunState(), None)
        watch = Watch(*parts)
        watch._supervision._restarts["worker-0"] = 5
        lost = {"name": "worker-0", "role": "worker", "state": "lost", "incarnation": "i"}
        anyio.run(watch.heard_of, lost)
        assert process.wait() == -signal.SIGKILL
        place = f"score ({tmp_path / 'b_hang.py'}:3)"
        (said,) = caplog.messages
        assert "worker-0 did not answer: it is killed" in said
        assert place in said
        assert said.endswith(f"see {log}")
        notice = ExitNotice("worker-0", process.pid, -9, False, "worker")
        with pytest.raises(RestartsSpentError) as raised:
            watch._ended(notice, cast(Any, None))
    assert f"ended 6 times without a new iteration: it did not answer; it stood in {place}" in (
        raised.value.told
    )
    assert f"{log} has its stack, which begins:\n" in str(raised.value)
    assert str(raised.value).splitlines()[1].strip().endswith("line 3 in score")
