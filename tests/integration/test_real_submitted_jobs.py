"""`ray job submit` from a clean clone: the program is a job of a Ray cluster."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.namespaces import ROOT, Nodes, ended, nodes, short_folder

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

DASHBOARD = "http://127.0.0.1:8265"
RAY = [sys.executable, "-m", "ray.scripts.scripts", "job"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def clone(place: Path) -> Path:
    """What a commit of this tree would hold."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in listed.stdout.decode().split("\0")[:-1]:
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    return place


def ray_job(cluster: Nodes, action: str, *words: str) -> "subprocess.Popen[str]":
    command = [*RAY, action, "--address", DASHBOARD, *words]
    return cluster.program(command, ROOT, {"NO_COLOR": "1", "OMP_NUM_THREADS": "1"})


def test_a_job_is_stopped_and_another_goes_on_with_its_run(folder: Path) -> None:
    """Ray kills a job that has not ended three seconds after it was told to."""
    clean = clone(folder / "clone")
    job = [
        "--working-dir", str(clean), "--", sys.executable, "train_async.py",
        "--ray-address", "auto", "--device", "cpu", "--run-dir", f"{folder}/local/runs",
        "--run-id", "run", "--resume", "auto", "--num-rollout", "5", "--rollout-batch-size", "8",
        "--save-interval", "1", "--skip-eval-before-train",
    ]  # fmt: skip
    metrics = folder / "local/runs/run/metrics.jsonl"
    with nodes(folder, 3, takes_jobs=True) as cluster:
        first = ray_job(cluster, "submit", "--submission-id", "first", *job)
        while not (metrics.exists() and "train/loss" in metrics.read_text()):
            assert first.poll() is None, first.communicate()
            time.sleep(0.2)
        ended(ray_job(cluster, "stop", "first"))
        said, _ = first.communicate(timeout=3000)
        assert "Job 'first' was stopped" in said
        said = ended(ray_job(cluster, "submit", "--submission-id", "second", *job))
        assert "a new run begins" not in said
        assert "iteration 1/5" not in said
        assert "complete: 5 iterations" in said
        assert "Job 'second' succeeded" in said
