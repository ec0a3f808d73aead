"""`--eval-mode apart` on the real stack: training and evaluations go on beside each other, and an
engine of evaluations that is killed gets its weights again."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agentrl.cluster.layout import processes_of
from agentrl.envs.search_r1.questions import eval_tasks

ROOT = Path(__file__).parents[2]
ITERATIONS = 8

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def test_a_score_is_of_one_version_though_its_engine_is_killed(tmp_path: Path) -> None:
    rows = [msgspec.json.encode(task.row) for task in eval_tasks("heldout")[:12]]
    (tmp_path / "asked.jsonl").write_bytes(b"\n".join(rows))
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--preset", "search-r1-local",
        "--num-rollout", str(ITERATIONS), "--eval-interval", "2", "--eval-mode", "apart",
        "--eval-prompt-data", "asked", "asked.jsonl", "--run-dir", ".", "--run-id", "run",
        "--rollout-batch-size", "4", "--save-interval", "100",
    ]  # fmt: skip
    run = tmp_path / "run"
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | {"NO_COLOR": "1"}, stdout=output, stderr=output
        )
        try:
            kill_once_it_has_scored(process, run)
            code = process.wait(1800)
        finally:
            process.kill()
    said = (tmp_path / "output").read_text()
    assert code == 0, said
    assert "eval-engine-0 ended with -9: it is started again" in said
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = {line["step"]: line["eval"]["asked"] for line in lines if "eval" in line}
    assert {0, ITERATIONS} <= scores.keys()
    for step, score in scores.items():
        assert score["version_min"] == score["version_max"] == step, "a push each iteration"
        assert (score["n"], score["failed"]) == (12, 0)
    assert all(line["metrics"]["perf/eval_hold_s"] == 0 for line in lines if holds(line))
    assert list((run / "recovery" / "evaluated").iterdir()) == []
    assert processes_of(run) == []


def holds(line: dict[str, dict[str, float]]) -> bool:
    return "perf/eval_hold_s" in line.get("metrics", {})


def kill_once_it_has_scored(process: subprocess.Popen[bytes], run: Path) -> None:
    """End the engine of evaluations, whatever it does, after the first score."""
    deadline = time.monotonic() + 1800
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or '"eval"' not in metrics.read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    log = (run / "logs" / "driver.log").read_text()
    (pid,) = re.findall(r"started eval-engine-0 \(pid (\d+)\)", log)
    os.kill(int(pid), signal.SIGKILL)
