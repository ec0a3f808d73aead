"""`--preset dapo` trains the default job on the real stack: lengths are counted, and what was taken
for them is the same in the metrics, the ledger and what is shown of the run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agentrl.buffer import audit
from agentrl.envs.search_r1.questions import eval_tasks
from agentrl.types import Fate, StopReason
from agentrl.view.choice import Choice
from agentrl.view.episodes import EpisodeView, read_facts

ROOT = Path(__file__).parents[2]
ITERATIONS, GROUPS = 2, 4
#: So short that many episodes lose something.
LONGEST, BUFFER = 24, 20

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def test_the_preset_trains_and_length_costs_what_it_should(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_bytes(msgspec.json.encode(eval_tasks("heldout")[0].row))
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--preset", "dapo",
        "--num-rollout", str(ITERATIONS), "--rollout-batch-size", str(GROUPS),
        "--overlong-max-length", str(LONGEST), "--overlong-buffer-length", str(BUFFER),
        "--overlong-filter", "--disable-rewards-normalization",
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
    assert report.fates[Fate.TRAINED] == ITERATIONS * GROUPS
    lines = map(json.loads, (tmp_path / "dapo" / "metrics.jsonl").read_text().splitlines())
    steps = [line["metrics"] for line in lines if "train/num_steps" in line.get("metrics", {})]
    assert len(steps) == ITERATIONS
    for lease, metrics in enumerate(steps, 1):
        episodes = read_facts(tmp_path / "dapo", Choice(lease=lease))
        lost = [penalty(episode) for episode in episodes]
        cut = [episode.row.stop_reason in CUT_OFF for episode in episodes]
        assert metrics["rollout/overlong_penalty"] == pytest.approx(sum(lost) / len(lost))
        assert metrics["rollout/num_overlong_filtered"] == sum(cut)
        for episode, less, is_cut in zip(episodes, lost, cut, strict=True):
            assert episode.scored is not None
            wanted = 0.0 if is_cut else episode.scored - less
            assert episode.advantage == pytest.approx(wanted)
    assert any(metrics["rollout/overlong_penalty"] > 0 for metrics in steps)


CUT_OFF = (StopReason.RESPONSE_LIMIT, StopReason.CONTEXT_LIMIT)


def penalty(episode: EpisodeView) -> float:
    """Of equation 13 of the paper, as a loss."""
    sampled = sum(line.meta.num_sampled for line in episode.row.trajectories)
    return min(max(sampled - (LONGEST - BUFFER), 0) / BUFFER, 1.0)
