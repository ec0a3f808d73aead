"""The whole loop on the real stack: SGLang, sglang-router, Megatron-core, Ray, ZeroMQ, SQLite.

One short run of the default job, started as a user starts it, then its remains are examined.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.buffer.audit import audit
from agentrl.cluster.layout import RUN_MARK, processes_of
from agentrl.envs.search_r1.questions import eval_tasks
from agentrl.types import Fate

ROOT = Path(__file__).parents[2]
ITERATIONS, GROUPS = 6, 4
#: Held-out questions that are asked, of 640.
QUESTIONS = 128

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


class FinishedRun:
    """A run directory and what the program said."""

    def __init__(self, path: Path, output: str, temporary: Path) -> None:
        self.path = path
        self.output = output
        self.temporary = temporary
        self.summary: dict[str, Any] = json.loads((path / "summary.json").read_text())
        lines = (path / "metrics.jsonl").read_text().splitlines()
        told: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.steps = [line for line in told if "metrics" in line]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedRun]:
    """A run whose only worker was killed after its second iteration."""
    # A temporary directory of its own, with a name short enough for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="loop-") as temporary:
        yield run_loop(tmp_path_factory.mktemp("real"), Path(temporary))


def run_loop(folder: Path, temporary: Path) -> FinishedRun:
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--async-buffer-size", "4",
        "--num-rollout", str(ITERATIONS), "--rollout-batch-size", str(GROUPS),
        "--run-dir", str(folder), "--run-id", "loop", "--check-weight-update-equal",
        "--eval-prompt-data", "heldout", str(folder / "heldout.jsonl"),
        # Generation is the slower half on any machine, so that every push meets running turns.
        "--sglang-server-concurrency", "4",
    ]  # fmt: skip
    rows = [msgspec.json.encode(task.row) for task in eval_tasks("heldout")[:QUESTIONS]]
    (folder / "heldout.jsonl").write_bytes(b"\n".join(rows))
    run = folder / "loop"
    with (folder / "output").open("w") as output:
        env = os.environ | {"NO_COLOR": "1", "TMPDIR": str(temporary)}
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
        try:
            kill_worker_after(run, 2, process)
            process.wait(3000)
        finally:
            process.terminate()
    said = (folder / "output").read_text()
    assert process.returncode == 0, f"{said}\n{tails(run)}"
    return FinishedRun(run, said, temporary)


def kill_worker_after(run: Path, steps: int, process: "subprocess.Popen[bytes]") -> None:
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + 1800
    while not metrics.exists() or metrics.read_text().count('"metrics":') < steps:
        assert process.poll() is None, f"it ended with {process.returncode}: {tails(run)}"
        assert time.monotonic() < deadline, tails(run)
        time.sleep(0.05)
    log = (run / "logs" / "driver.log").read_text()
    (pid,) = re.findall(r"started worker-0 \(pid (\d+)\)", log)
    os.kill(int(pid), signal.SIGKILL)


def tails(run: Path) -> str:
    logs = sorted((run / "logs").glob("*.log"))
    return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)


def test_the_run_completes_every_iteration(finished: FinishedRun) -> None:
    assert finished.summary["status"] == "complete"
    assert finished.summary["steps"] == ITERATIONS
    assert len(finished.steps) == ITERATIONS
    assert "search-r1-local" in finished.output.splitlines()[0]


def test_a_killed_worker_is_replaced_and_every_group_has_exactly_one_fate(
    finished: FinishedRun,
) -> None:
    log = (finished.path / "logs" / "driver.log").read_text()
    assert log.count("started worker-0") == 2
    report = audit(finished.path)
    assert report.problems == ()
    assert report.open == 0
    assert report.fates[Fate.TRAINED] == ITERATIONS * GROUPS


def test_the_learner_trains_on_the_ids_that_the_engine_sampled(finished: FinishedRun) -> None:
    """Log-probabilities recomputed from the trained ids equal the engine's under the same weights;
    one other id anywhere before or at a token would change them."""
    name = "train/logprob_diff_on_policy_max"
    differences = [step["metrics"][name] for step in finished.steps if name in step["metrics"]]
    assert differences, "an iteration whose rewards differ in no group tells nothing; all did"
    assert max(differences) < 1e-4


def test_the_log_of_an_engine_that_was_stopped_tells_of_no_crash(finished: FinishedRun) -> None:
    log = (finished.path / "logs" / "engine-0.log").read_text()
    assert "ready to roll" in log
    assert "crashed" not in log


def test_no_trained_token_is_older_than_the_bound(finished: FinishedRun) -> None:
    assert 0 <= finished.summary["max_trained_age"] <= 4


def test_episodes_call_tools_over_several_turns(finished: FinishedRun) -> None:
    assert max(step["metrics"]["rollout/turns_mean"] for step in finished.steps) > 1.0
    assert max(step["metrics"]["rollout/tool_calls"] for step in finished.steps) > 0.0


def test_pushes_drained_nothing_and_trajectories_span_versions(finished: FinishedRun) -> None:
    assert sum(step["metrics"]["rollout/retractions"] for step in finished.steps) > 0
    with closing(sqlite3.connect(finished.path / "ledger.db")) as ledger:
        versions = [row[0] for row in ledger.execute("SELECT version FROM versions")]
        rows = [json.loads(row[0]) for row in ledger.execute("SELECT row FROM trajectories")]
    assert sorted(versions) == list(range(ITERATIONS + 1))
    assert any(len(row["meta"]["versions"]) > 1 for row in rows)


def test_weights_moved_and_were_saved(finished: FinishedRun) -> None:
    from safetensors.numpy import load_file

    import agentrl.envs.search_r1

    before = load_file(Path(agentrl.envs.search_r1.__file__).parent / "model/model.safetensors")
    after = load_file(finished.path / "hf" / "model.safetensors")
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)


def test_the_first_and_last_evaluation_are_of_one_version_each(finished: FinishedRun) -> None:
    (scores,) = finished.summary["eval"].values()
    first, last = scores
    assert (first["step"], first["version_min"], first["version_max"]) == (0, 0, 0)
    assert last["step"] == ITERATIONS
    assert last["version_min"] == last["version_max"] == ITERATIONS


def test_nothing_is_left_behind(finished: FinishedRun) -> None:
    assert processes_of(finished.path) == []
    assert list(finished.temporary.glob("agentrl-*")) == []


def test_processes_of_a_run_can_be_told(tmp_path: Path) -> None:
    """Guards the guard: a process that carries the mark is found."""
    command = ["sh", "-c", "echo up; read line"]  # no exec: in that moment there is no environ
    env = os.environ | {RUN_MARK: str(tmp_path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert process.pid in processes_of(tmp_path)
        process.kill()


def test_the_trained_model_scores_the_same_when_it_is_evaluated_alone(
    finished: FinishedRun, tmp_path: Path
) -> None:
    command = [str(Path(sys.executable).with_name("agentrl")), "eval", str(finished.path)]
    flags = ["--run-dir", str(tmp_path), "--run-id", "alone"]
    done = subprocess.run(
        [*command, *flags], cwd=ROOT, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    alone = json.loads((tmp_path / "alone" / "summary.json").read_text())
    (score,) = alone["eval"]["heldout"]
    assert alone["steps"] == 0
    assert score["score"] == pytest.approx(
        finished.summary["eval"]["heldout"][-1]["score"], abs=3 / QUESTIONS
    )
    assert not (tmp_path / "alone" / "hf").exists()
