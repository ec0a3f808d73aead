"""`--eval-config` on the real stack: one run is scored on three sets, each by an Env of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agentrl.envs.guess.games import eval_tasks as games
from agentrl.envs.search_r1.questions import eval_tasks as questions

ROOT = Path(__file__).parents[2]
SETS = """
eval:
  defaults: {max_response_len: 48}
  datasets:
    - {name: asked, path: asked.jsonl, n_samples_per_eval_prompt: 4, temperature: 1.0}
    - {name: games, path: games.jsonl, env: guess, max_turns: 2}
    - name: sums
      path: sums.jsonl
      env: single-turn
      rm_type: math
      n_samples_per_eval_prompt: 3
"""

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def test_three_sets_are_played_each_in_its_own_way(tmp_path: Path) -> None:
    rows = {
        "asked": [task.row for task in questions("heldout")[:2]],
        "games": [task.row for task in games()[:3]],
        "sums": [{"input": "How much is two and two?", "label": "4"}],
    }
    for name, of_set in rows.items():
        lines = [msgspec.json.encode(row) for row in of_set]
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "sets.yaml").write_text(SETS)
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--preset", "search-r1-local",
        "--eval-only", "--eval-config", "sets.yaml", "--run-dir", ".", "--run-id", "run",
    ]  # fmt: skip
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    scores = {n: score for line in told for n, score in json.loads(line).get("eval", {}).items()}
    assert {name: score["n"] for name, score in scores.items()} == {
        "asked": 8,
        "games": 3,
        "sums": 3,
    }
    assert all(score["failed"] == 0 for score in scores.values())
    assert {"pass@4", "avg@4"} <= scores["asked"].keys()
    assert "avg@3" in scores["sums"]
    assert scores["games"]["turns"] <= 2
    assert any(name.startswith("metric/") for name in scores["games"])
