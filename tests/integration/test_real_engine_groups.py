"""Engines of several kinds on the real stack: two groups with settings of their own play and are
trained on, and both hold the weights of each push."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.buffer import audit
from agentrl.types import Fate

ROOT = Path(__file__).parents[2]
GROUPS = """
sglang:
  - name: default
    server_groups:
      - worker_type: regular
        num_gpus: 1
        overrides: {max_running_requests: 5, chunked_prefill_size: 256}
      - worker_type: regular
        num_gpus: 1
        overrides: {max_running_requests: 7}
"""

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def test_engines_with_settings_of_their_own_play_one_run(tmp_path: Path) -> None:
    (tmp_path / "groups.yaml").write_text(GROUPS)
    command = [
        sys.executable, str(ROOT / "train.py"), "--preset", "search-r1-local", "--device", "cpu",
        "--sglang-config", "groups.yaml", "--check-weight-update-equal", "--num-rollout", "1",
        "--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--skip-eval-before-train",
        "--eval-prompt-data", "one", "one.jsonl", "--run-dir", ".", "--run-id", "run",
    ]  # fmt: skip
    (tmp_path / "one.jsonl").write_text('{"question": "Who?", "answer": "Nobody"}\n')
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    run = tmp_path / "run"
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = audit(run)
    assert report.clean, report.problems
    assert report.fates == {Fate.TRAINED: 4}
    said = [(run / "logs" / f"engine-{index}.log").read_text() for index in range(2)]
    # SGLang tells the settings that it starts with
    for log, limit in zip(said, (5, 7), strict=True):
        assert f"max_running_requests={limit}" in log, log[-2000:]
        assert "Prefill batch" in log, "it took no turn"
    learner = (run / "logs" / "learner-0.log").read_text()
    assert "fell out" not in learner
    assert {f"engine-{index} is routed" in learner for index in range(2)} == {True}
