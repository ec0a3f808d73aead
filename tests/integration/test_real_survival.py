"""SIGKILL of every part of a run on the real stack: it goes on or is continued; nothing is lost."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.buffer.audit import audit
from agentrl.cluster.layout import processes_of
from agentrl.types import Fate

ROOT = Path(__file__).parents[2]
GROUPS = 4

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


class Run:
    """A run of the default job, small, that a test may hurt."""

    def __init__(self, folder: Path, num_rollout: int, num_questions: int, *flags: str) -> None:
        self.path = folder / "run"
        self._folder = folder
        row = '{"question": "Where?", "answer": "here"}\n'
        (folder / "eval.jsonl").write_text(num_questions * row)
        self.start(
            "--async-buffer-size", "4", "--rollout-batch-size", str(GROUPS),
            "--num-rollout", str(num_rollout), "--save-interval", "4", "--run-dir", str(folder),
            "--run-id", "run", "--skip-eval-before-train", "--update-weights-timeout", "120",
            "--eval-prompt-data", "one", str(folder / "eval.jsonl"), *flags,
        )  # fmt: skip

    def start(self, *flags: str) -> None:
        command = [sys.executable, str(ROOT / "train_async.py"), *flags]
        with (self._folder / "output").open("a") as output:
            self.process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=os.environ | {"NO_COLOR": "1"},
                stdout=output,
                stderr=output,
            )

    @property
    def said(self) -> str:
        return (self._folder / "output").read_text()

    @property
    def num_steps(self) -> int:
        """Iterations told of so far, repeated ones too."""
        path = self.path / "metrics.jsonl"
        return path.read_text().count('"metrics":') if path.exists() else 0

    def wait_for_steps(self, number: int) -> None:
        self.wait_until(lambda: self.num_steps >= number)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 1800
        while not condition():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    @property
    def log(self) -> str:
        return (self.path / "logs" / "driver.log").read_text()

    def pid(self, name: str) -> int:
        return int(re.findall(rf"started {name} \(pid (\d+)\)", self.log)[-1])

    def kill(self, name: str) -> None:
        os.kill(self.pid(name), signal.SIGKILL)

    def finish(self) -> dict[str, Any]:
        assert self.process.wait(1800) == 0, self.said
        summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return summary


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts a run; whatever is left of it at the end is killed."""
    runs: list[Run] = []

    def make(num_rollout: int, num_questions: int = 1, *flags: str) -> Run:
        runs.append(Run(tmp_path, num_rollout, num_questions, *flags))
        return runs[-1]

    yield make
    for run in runs:
        run.process.kill()


def test_a_run_goes_on_when_any_of_its_parts_is_killed(start: Any) -> None:
    run = start(18)
    for name in ("router", "engine-0", "buffer", "learner-0", "worker-0", "retriever"):
        before = run.num_steps
        run.wait_for_steps(before + 2)
        run.kill(name)
    summary = run.finish()
    assert (summary["status"], summary["steps"]) == ("complete", 18)
    for name in ("router", "engine-0", "buffer", "learner-0", "worker-0", "retriever"):
        assert f"{name} ended with -9: it is started again" in run.said
    report = audit(run.path)
    assert report.problems == ()
    # A group may be hit by three kills; it then has that fate, and another takes its place.
    assert report.fates.keys() <= {Fate.TRAINED, Fate.ENGINE_ERROR, Fate.ENV_ERROR}
    assert report.fates[Fate.TRAINED] == 18 * GROUPS
    assert processes_of(run.path) == []


def test_a_killed_driver_takes_all_with_it_and_another_continues_the_run(start: Any) -> None:
    run = start(12)
    run.wait_for_steps(6)
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 1800
    while processes_of(run.path):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert audit(run.path).problems == ()
    num_before = run.num_steps
    run.start("--resume", str(run.path))
    summary = run.finish()
    assert (summary["status"], summary["steps"]) == ("complete", 12)
    log = (run.path / "logs" / "learner-0.log").read_text()
    (restored,) = map(int, re.findall(r"going on after iteration (\d+)", log))
    assert restored in (4, 8)
    steps = [json.loads(line) for line in (run.path / "metrics.jsonl").open()]
    told = [(s["step"], s["metrics"]["rollout/reward_mean"]) for s in steps if "metrics" in s]
    again = told[num_before:]
    assert [number for number, _ in again] == list(range(restored + 1, 13))
    repeated = max(0, num_before - restored)
    assert again[:repeated] == told[num_before - repeated : num_before]  # the same rows
    report = audit(run.path)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: 12 * GROUPS}


def test_all_at_once_and_an_engine_in_the_last_evaluation(start: Any) -> None:
    run = start(6, num_questions=400)
    run.wait_for_steps(4)
    for pid in [run.process.pid, *processes_of(run.path)]:
        with contextlib.suppress(ProcessLookupError):  # its parent was killed a moment before
            os.kill(pid, signal.SIGKILL)
    run.process.wait()
    run.start("--resume", "auto", "--run-dir", str(run.path.parent))
    run.wait_until(lambda: re.search(r"learner-0 \(pid \d+\) ended with 0", run.log) is not None)
    run.kill("engine-0")
    summary = run.finish()
    assert "engine-0 ended with -9: it is started again" in run.said
    assert (summary["status"], summary["steps"]) == ("complete", 6)
    score = summary["eval"]["one"][-1]
    assert (score["step"], score["n"]) == (6, 400)
    report = audit(run.path)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: 6 * GROUPS}
    assert processes_of(run.path) == []


def test_an_engine_that_hangs_is_killed_and_started_again(start: Any) -> None:
    """Its scheduler stands still, and its process is there: nobody else would end it."""
    run = start(
        12, 1, "--call-timeout-s", "15", "--update-weights-timeout", "30",
        "--sglang-watchdog-timeout", "60",
    )  # fmt: skip
    run.wait_for_steps(2)
    os.kill(_scheduler_of(run.pid("engine-0")), signal.SIGSTOP)
    summary = run.finish()
    assert "engine-0 did not answer for 90 s" in run.said
    assert "engine-0 ended with -9: it is started again" in run.said
    assert (summary["status"], summary["steps"]) == ("complete", 12)
    report = audit(run.path)
    assert report.problems == ()
    assert report.fates.keys() <= {Fate.TRAINED, Fate.ENGINE_ERROR}
    assert report.fates[Fate.TRAINED] == 12 * GROUPS


def _scheduler_of(engine: int) -> int:
    """The process of an engine that samples."""
    children = Path(f"/proc/{engine}/task/{engine}/children").read_text().split()
    (found,) = [
        int(pid) for pid in children if "scheduler" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    return found
