"""Invariant I7 on the real stack: without a buffer ahead, `train_async.py` is `train.py`; and
`train.py` is what it is when learner and engines take turns on their devices (`--colocate`).

One engine with one running request, so that every turn is decoded alone; the likeliest token, one
episode of each question, rewards as they are.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load

import agentrl.envs.search_r1
from agentrl.buffer.audit import audit
from agentrl.buffer.ledger import LedgerReader
from agentrl.buffer.store import read_payload
from agentrl.columns import split
from agentrl.envs.search_r1.questions import eval_tasks
from agentrl.types import Fate

ROOT = Path(__file__).parents[2]
SHIPPED = Path(agentrl.envs.search_r1.__file__).parent / "model" / "model.safetensors"
ITERATIONS, GROUPS = 5, 8
#: Largest difference of a loss that the rounding of two processes may make.
TOLERANCE = 1e-4
#: What is done in an iteration where learner and engines share devices, in order.
ROUND = (
    "engines_release", "learner_wakes", "learner_lays_down", "engines_take_weights",
    "learner_sleeps", "engines_serve",
)  # fmt: skip

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


class Played:
    """A complete run, as it lies on disk."""

    def __init__(self, run: Path) -> None:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        told: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.steps = [line["metrics"] for line in told if "metrics" in line]
        self.report = audit(run)
        self.weights = (run / "hf" / "model.safetensors").read_bytes()
        with LedgerReader(run / "ledger.db") as ledger:
            rows = ledger.load_all()
        self.tasks = {group.mint: group.task for group in rows.groups}
        self.rewards = {(row.mint, row.index): row.reward for row in rows.episodes}
        self.columns = {
            (row.mint, row.index): {
                name: bytes(column)
                for name, column in split(
                    row.trajectories[0].meta.layout,
                    read_payload(run / "payload", row.trajectories[0].payload),
                ).items()
            }
            for row in rows.episodes
        }


def play(folder: Path, program: str, *flags: str, iterations: int = ITERATIONS) -> Played:
    folder.mkdir(exist_ok=True)
    (folder / "one.jsonl").write_bytes(msgspec.json.encode(eval_tasks("heldout")[0].row))
    command = [
        sys.executable, str(ROOT / program), "--preset", "search-r1-local",
        "--num-rollout", str(iterations), "--rollout-batch-size", str(GROUPS),
        "--n-samples-per-prompt", "1", "--rollout-temperature", "0",
        "--disable-rewards-normalization", "--sglang-server-concurrency", "1",
        "--skip-eval-before-train", "--eval-prompt-data", "one", "one.jsonl",
        "--run-dir", ".", "--run-id", program, *flags,
    ]  # fmt: skip
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return Played(folder / program)


def test_train_async_with_nothing_ahead_samples_and_learns_what_train_does(tmp_path: Path) -> None:
    synchronous = play(tmp_path, "train.py")
    ahead = ["--async-buffer-size", "0", "--max-staleness", "0", "--update-weights-interval", "1"]
    other = play(tmp_path, "train_async.py", *ahead)
    for played in (synchronous, other):
        assert played.report.problems == ()
        assert played.report.fates == {Fate.TRAINED: ITERATIONS * GROUPS}
        assert len({task.row["question"] for task in played.tasks.values()}) == ITERATIONS * GROUPS
        assert any(played.rewards.values())
        assert played.weights != SHIPPED.read_bytes()
    assert other.tasks == synchronous.tasks
    assert other.rewards == synchronous.rewards
    for name in ("tokens", "kinds", "versions", "turns"):
        for key, columns in synchronous.columns.items():
            assert other.columns[key][name] == columns[name], (key, name)
    for mine, theirs in zip(other.steps, synchronous.steps, strict=True):
        assert mine["train/loss"] == pytest.approx(theirs["train/loss"], abs=TOLERANCE)
        assert mine["train/age_max_trained"] == 0
    assert any(abs(step["train/loss"]) > TOLERANCE for step in other.steps)


def test_learner_and_engines_in_turn_sample_and_learn_what_they_do_apart(tmp_path: Path) -> None:
    apart = play(tmp_path / "apart", "train.py", iterations=2)
    # With a checkpoint between: it is written before the push, while the learner has its memory.
    flags = ["--colocate", "--save-interval", "1"]
    in_turn = play(tmp_path / "in_turn", "train.py", *flags, iterations=2)
    assert in_turn.report.problems == ()
    assert in_turn.report.fates == apart.report.fates == {Fate.TRAINED: 2 * GROUPS}
    assert in_turn.tasks == apart.tasks
    assert in_turn.rewards == apart.rewards
    for name in ("tokens", "kinds", "versions", "turns"):
        for key, columns in apart.columns.items():
            assert in_turn.columns[key][name] == columns[name], (key, name)
    for mine, theirs in zip(in_turn.steps, apart.steps, strict=True):
        assert mine["train/loss"] == pytest.approx(theirs["train/loss"], abs=TOLERANCE)
    weights, others = load(in_turn.weights), load(apart.weights)
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        assert (weight - others[name]).abs().max() <= TOLERANCE, name
    log = (tmp_path / "in_turn" / "train.py" / "logs" / "learner-0.log").read_text()
    moves = re.findall(r"handover: (\w+) took", log)
    assert moves == [*ROUND[2:], *ROUND, *ROUND], "the first push, and two iterations"
