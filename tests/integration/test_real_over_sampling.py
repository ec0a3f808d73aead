"""DAPO's dynamic sampling in `train.py` on the real stack: twice the groups of an iteration, a
filter, and a surplus that is given up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agentrl.buffer import audit
from agentrl.envs.search_r1.questions import eval_tasks
from agentrl.types import Fate

ROOT = Path(__file__).parents[2]
ITERATIONS, GROUPS = 3, 4
#: Takes every third question, so that the same tasks are dropped in every run.
FILTER = """
def keep(rewards, task):
    return sum(task.row["question"].encode()) % 3 != 0, "every third"
"""

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def test_train_over_samples_gives_up_its_surplus_and_trains_nothing_old(tmp_path: Path) -> None:
    (tmp_path / "keep.py").write_text(FILTER)
    (tmp_path / "one.jsonl").write_bytes(msgspec.json.encode(eval_tasks("heldout")[0].row))
    command = [
        sys.executable, str(ROOT / "train.py"), "--preset", "search-r1-local",
        "--num-rollout", str(ITERATIONS), "--rollout-batch-size", str(GROUPS),
        "--n-samples-per-prompt", "2", "--over-sampling-batch-size", str(2 * GROUPS),
        "--dynamic-sampling-filter-path", "keep.py:keep",
        "--skip-eval-before-train", "--eval-prompt-data", "one", "one.jsonl",
        "--run-dir", ".", "--run-id", "dapo",
    ]  # fmt: skip
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = audit(tmp_path / "dapo")
    assert report.problems == ()
    assert report.open == 0
    assert report.fates[Fate.TRAINED] == ITERATIONS * GROUPS
    # Of the Q = 2N groups in the making at most N are left over when a lease is full. Less, where a
    # group was filtered so late that the task in its place had not come.
    assert 0 < report.fates[Fate.SURPLUS] <= ITERATIONS * GROUPS
    lines = map(json.loads, (tmp_path / "dapo" / "metrics.jsonl").read_text().splitlines())
    steps = [line["metrics"] for line in lines if "metrics" in line]
    assert {step.get("train/age_max_trained", 0) for step in steps} == {0}
    assert [step["train/num_stale_tokens"] for step in steps] == [0] * ITERATIONS
    assert steps[-1]["buffer/fates/surplus"] == report.fates[Fate.SURPLUS]
