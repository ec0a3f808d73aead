"""`--true-on-policy-mode` on the real stack: the learner's log-probability of a fresh token is the
engine's bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ITERATIONS = 2

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def test_fresh_tokens_of_several_turns_and_versions_have_the_same_bits(tmp_path: Path) -> None:
    """Engines decode beside other episodes and reuse prefixes; the learner packs sequences, takes
    steps and pushes. At another temperature than 1."""
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--true-on-policy-mode",
        "--num-rollout", str(ITERATIONS), "--rollout-batch-size", "8", "--lr", "1e-4",
        "--rollout-temperature", "0.7", "--skip-eval-before-train", "--device", "cpu",
        "--run-dir", ".", "--run-id", "exact",
    ]  # fmt: skip
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = map(json.loads, (tmp_path / "exact" / "metrics.jsonl").read_text().splitlines())
    steps = [line["metrics"] for line in lines if "train/num_steps" in line.get("metrics", {})]
    assert len(steps) == ITERATIONS
    assert steps[0]["train/logprob_diff_max"] == 0.0
    on_policy = [step.get("train/logprob_diff_on_policy_max", 0.0) for step in steps]
    assert max(on_policy) == 0.0
    assert steps[-1]["rollout/turns_mean"] > 1
    assert steps[-1]["train/grad_norm"] > 0
