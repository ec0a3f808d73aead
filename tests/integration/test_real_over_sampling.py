"""DAPO's dynamic sampling in `train.py` on the real stack: twice the groups of an iteration, a
filter, and a surplus that is given up. A function sees the groups that were kept and dropped."""

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

#: Notes of each group whether it was kept, and what is known of its samples, a line for each call.
SEEING = """
import json

def save(args, all_samples, data_source):
    found = [[group[0].kept, [s.to_dict() for s in group]] for group in all_samples]
    with open("seen.jsonl", "a") as file:
        file.write(json.dumps(found) + "\\n")
"""

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def test_train_over_samples_gives_up_its_surplus_and_trains_nothing_old(tmp_path: Path) -> None:
    (tmp_path / "keep.py").write_text(FILTER)
    (tmp_path / "see.py").write_text(SEEING)
    (tmp_path / "one.jsonl").write_bytes(msgspec.json.encode(eval_tasks("heldout")[0].row))
    command = [
        sys.executable, str(ROOT / "train.py"), "--preset", "search-r1-local",
        "--num-rollout", str(ITERATIONS), "--rollout-batch-size", str(GROUPS),
        "--n-samples-per-prompt", "2", "--over-sampling-batch-size", str(2 * GROUPS),
        "--dynamic-sampling-filter-path", "keep.py:keep",
        "--rollout-all-samples-process-path", "see.py:save",
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
    _check_seen(tmp_path / "seen.jsonl", report.fates)


def _check_seen(file: Path, fates: dict[Fate, int]) -> None:
    """Each group that was judged was shown once, with its texts and rewards."""
    calls = [json.loads(line) for line in file.read_text().splitlines()]
    assert ITERATIONS <= len(calls) <= ITERATIONS + 1  # the rest at the end
    groups = [group for call in calls for group in call]
    kept = [samples for is_kept, samples in groups if is_kept]
    dropped = [samples for is_kept, samples in groups if not is_kept]
    assert len(dropped) == fates[Fate.FILTERED] > 0
    # What is surplus may be given up before it is judged.
    assert fates[Fate.TRAINED] <= len(kept) <= fates[Fate.TRAINED] + fates[Fate.SURPLUS]
    places = [samples[0]["group_index"] for _, samples in groups]
    assert len(set(places)) == len(places)
    for samples in (*kept, *dropped):
        assert len(samples) == 2
        for sample in samples:
            assert sample["response_length"] > 0
            assert isinstance(sample["reward"], float)
    assert all(sum(samples[0]["metadata"]["question"].encode()) % 3 == 0 for samples in dropped)
    assert any(sample["response"] for samples in dropped for sample in samples)
