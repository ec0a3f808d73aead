"""What a recorder is given in tests: a folder, settings, and the events that a buffer sends."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.telemetry.metrics import REGISTRY
from agentrl.telemetry.registry import Registry

STRICT = Registry(REGISTRY, strict=True)


def settings(num_rollout: int | None) -> SimpleNamespace:
    """What a recorder reads of a configuration."""
    return SimpleNamespace(num_rollout=num_rollout, rollout_temperature=1.0)


def step_data(
    number: int, *, wait_s: float = 1.0, max_age: int = 1, sampled: int = 0
) -> dict[str, Any]:
    """A step event as the buffer sends it."""
    return {
        "number": number,
        "skipped": False,
        "metrics": {
            "rollout/reward_mean": 0.25 * number,
            "rollout/num_episodes": 10,
            "rollout/response_length_mean": 20.0,
            "train/age_histogram": [5, 3, 0],
            "train/age_max_trained": max_age,
            "perf/lease_wait_s": wait_s,
            "perf/iteration_s": 4.0,
        },
        "buffer": {
            "ready": 2,
            "charged": 9,
            "running": 4,
            "cap": 12.5,
            "workers": 1,
            "sampled_tokens": sampled,
        },
    }


def evaluation(score: float | None, version: int | None, n: int) -> dict[str, Any]:
    data = {"name": "nq", "id": "nq@0", "n": n, "failed": 0, "metric/em": 0.5}
    data |= {"version_min": version, "version_max": version}
    return data | ({} if score is None else {"score": score})


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run-7").mkdir()
    return tmp_path / "run-7"
