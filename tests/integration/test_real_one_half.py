"""One half of a run at a time on the real stack: engines without a learner, then a learner without
engines on what they played."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.buffer import audit
from agentrl.rollout_file import read_rollouts
from agentrl.types import Fate

ROOT = Path(__file__).parents[2]
ITERATIONS, GROUPS = 2, 4

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def run(folder: Path, name: str, *flags: str) -> list[dict[str, float]]:
    """Run `train.py` to its end; the metrics of its iterations."""
    command = [
        sys.executable, str(ROOT / "train.py"), "--preset", "search-r1-local",
        "--rollout-batch-size", str(GROUPS), "--n-samples-per-prompt", "4",
        "--run-dir", ".", "--run-id", name, *flags,
    ]  # fmt: skip
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return [line["metrics"] for line in lines if "metrics" in line]


def test_what_engines_played_alone_is_trained_on_alone(tmp_path: Path) -> None:
    played = run(
        tmp_path, "played", "--debug-rollout-only", "--num-rollout", str(ITERATIONS),
        "--skip-eval-before-train", "--save-debug-rollout-data", "saved/{rollout_id}",
    )  # fmt: skip
    report = audit(tmp_path / "played")
    assert report.clean, report.problems
    assert report.fates[Fate.SKIPPED] == ITERATIONS * GROUPS
    assert not (tmp_path / "played" / "logs" / "learner-0.log").read_text().count("Megatron")
    assert not (tmp_path / "played" / "hf").exists()
    teaches = False  # where all rewards of each group are equal, no token is trained
    for number in (1, 2):
        found = read_rollouts(tmp_path / "saved" / str(number))
        teaches = teaches or any(len(set(group.rewards)) > 1 for group in found.lease.groups)
        rows = [row for group in found.lease.groups for row in group.trajectories]
        assert {v for row in rows for v, _ in row.meta.versions} == {number - 1}

    trained = run(
        tmp_path, "trained", "--num-rollout", "2", "--load-debug-rollout-data", "saved/{rollout_id}"
    )
    report = audit(tmp_path / "trained")
    assert report.clean, report.problems
    assert report.fates == {Fate.TRAINED: ITERATIONS * GROUPS}
    logs = {path.name for path in (tmp_path / "trained" / "logs").glob("*.log")}
    assert logs == {"driver.log", "buffer.log", "learner-0.log"}
    assert (tmp_path / "trained" / "hf" / "model.safetensors").exists()
    assert len(trained) == ITERATIONS
    for before, now in zip(played, trained, strict=True):
        assert now["rollout/reward_mean"] == before["rollout/reward_mean"]
    assert (sum(line["train/num_tokens"] for line in trained) > 0) is teaches, trained
