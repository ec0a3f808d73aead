"""Pushes through a disk on the real stack: engines patch their copies, and hold what the learner
does, tensor by tensor."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.serving.push_files import read_push

ROOT = Path(__file__).parents[2]
SHOW = """
from pathlib import Path

def show(args, version_dir, rollout_engines):
    there = (Path(version_dir) / "push.json").is_file()
    with open("shown", "a") as file:
        print(Path(version_dir).name, there, len(rollout_engines), file=file)
"""

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def test_engines_follow_the_learner_by_files(tmp_path: Path) -> None:
    """`--check-weight-update-equal` ends a run whose engines hold anything else."""
    (tmp_path / "show.py").write_text(SHOW)
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--preset", "search-r1-local",
        "--num-rollout", "2", "--rollout-batch-size", "4", "--n-samples-per-prompt", "4",
        "--skip-eval-before-train", "--eval-prompt-data", "few", "few.jsonl",
        "--update-weight-transport", "disk", "--update-weight-mode", "delta",
        "--update-weight-disk-dir", "shared", "--update-weight-disk-keep-files",
        "--update-weight-local-checkpoint-dir", "local",
        "--custom-update-weight-post-write-path", f"{tmp_path / 'show.py'}:show",
        "--check-weight-update-equal", "--run-dir", ".", "--run-id", "run",
    ]  # fmt: skip
    (tmp_path / "few.jsonl").write_text(
        '{"question": "continent of Azerbaijan?", "answer": "Asia"}\n'
    )
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    pushes = [read_push(folder) for folder in sorted((_only(tmp_path / "shared")).iterdir())]
    assert [push.version for push in pushes] == [0, 1, 2]
    assert [push.delta and push.delta.base for push in pushes] == [None, 0, 1]
    held = read_push(_only(tmp_path / "local"))
    assert (held.stream, held.version) == (pushes[0].stream, 2)
    assert (tmp_path / "shown").read_text().splitlines() == [
        f"weight_v00000{version} True 1" for version in range(3)
    ]
    told = list(map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()))
    sizes = [line["metrics"]["perf/push_bytes"] for line in told if "metrics" in line]
    whole = sum(
        file.stat().st_size for file in (_only(tmp_path / "shared") / "weight_v000000").iterdir()
    )
    assert sizes[0] == whole > sizes[1]


def _only(place: Path) -> Path:
    """The folder of the one run there."""
    (found,) = (path for path in place.iterdir() if path.is_dir())
    return found
