"""Every estimator that ships trains two iterations of two steps on the real stack; a commit plays
the slice of its day."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agentrl.buffer import audit
from agentrl.config.fields import own_fields
from agentrl.envs.search_r1.questions import eval_tasks
from agentrl.types import Fate
from tests.estimators import ESTIMATORS, flags_of
from tests.slices import of_the_day

ROOT = Path(__file__).parents[2]
ITERATIONS, GROUPS = 2, 6
#: Estimators that one day plays.
A_DAY = 1

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def command_line(name: str) -> list[str]:
    """The flags of the estimator as they are given."""
    words = []
    for field, value in flags_of(name).items():
        flag = own_fields()[field]
        words += [flag.spelled(True)] if flag.kind == "bool" else [flag.flag, str(value)]
    return words


@pytest.mark.parametrize("name", of_the_day(ESTIMATORS, A_DAY))
def test_an_estimator_trains_on_the_real_stack(name: str, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_bytes(msgspec.json.encode(eval_tasks("heldout")[0].row))
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--preset", "search-r1-local",
        "--num-rollout", str(ITERATIONS), "--rollout-batch-size", str(GROUPS),
        "--n-samples-per-prompt", "8", "--num-steps-per-rollout", "2", *command_line(name),
        "--skip-eval-before-train", "--eval-prompt-data", "one", "one.jsonl",
        "--run-dir", ".", "--run-id", "run",
    ]  # fmt: skip
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = audit(tmp_path / "run")
    assert report.problems == ()
    assert report.fates[Fate.TRAINED] == ITERATIONS * GROUPS
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    steps = [line["metrics"] for line in lines if "metrics" in line]
    norms = [step["train/grad_norm"] for step in steps if "train/grad_norm" in step]
    assert len(norms) == ITERATIONS
    assert all(map(math.isfinite, norms))
    assert max(norms) > 0
