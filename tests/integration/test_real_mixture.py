"""`--env-mix` on the real stack: one run trains on three Envs, and is scored on their sets."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from agentrl.buffer import audit
from agentrl.envs.guess.games import eval_tasks as games

ROOT = Path(__file__).parents[2]
MIX = """
[[parts]]
name = "asked"
weight = 2
eval = [{name = "heldout"}]

[[parts]]
name = "games"
env = "guess"
max_turns = 2
temperature = 0.6
eval = [{name = "few", path = "games.jsonl"}]

[[parts]]
name = "sums"
env = "single-turn"
prompt_data = "sums.jsonl"
rm_type = "math"
max_response_len = 16
temperature = 1.3
stop = ["</answer>"]
"""

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def test_one_run_trains_on_three_envs(tmp_path: Path) -> None:
    (tmp_path / "mix.toml").write_text(MIX)
    (tmp_path / "sums.jsonl").write_text('{"input": "How much is two and two?", "label": "4"}\n')
    rows = [msgspec.json.encode(task.row) for task in games()[:2]]
    (tmp_path / "games.jsonl").write_bytes(b"\n".join(rows))
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--preset", "search-r1-local",
        "--env-mix", "mix.toml", "--num-rollout", "2", "--rollout-batch-size", "8",
        "--n-samples-per-prompt", "4", "--run-dir", ".", "--run-id", "run",
    ]  # fmt: skip
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    told = list(map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()))
    metrics = [line["metrics"] for line in told if "metrics" in line]
    groups = Counter[str]()
    for line in metrics:
        for part in ("asked", "games", "sums"):
            groups[part] += int(line.get(f"rollout/part/{part}/num_groups", 0))
    assert groups.total() == 16
    assert groups["asked"] > groups["games"] > 0 < groups["sums"]
    gaps = [line["train/mismatch_kl"] for line in metrics if "train/mismatch_kl" in line]
    assert gaps
    assert max(map(abs, gaps)) < 1e-4  # the learner scores each part at its own temperature
    scored = {name for line in told for name in line.get("eval", {})}
    assert scored == {"asked-heldout", "games-few"}

    report = audit(tmp_path / "run")
    assert report.clean, report.problems
    view = [sys.executable, "-m", "agentrl.cli", "view", "run", "--json"]
    shown = subprocess.run(view, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    played = {(line["part"], line["env"]) for line in lines if line["outcome"] == "done"}
    assert played == {("asked", "search-r1-local"), ("games", "guess"), ("sums", "single-turn")}
    assert max(line["turns"] for line in lines if line["part"] == "games") <= 2
    assert max(line["turns"] for line in lines if line["part"] == "sums") == 1
    assert max(line["sampled"] for line in lines if line["part"] == "sums") <= 16
