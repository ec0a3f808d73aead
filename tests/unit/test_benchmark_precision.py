"""The limits of the engine check follow from what was measured."""

import json
from pathlib import Path

import pytest

from agentrl.learner.tolerance import BFLOAT16, FLOAT32, Tolerance

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "precision.json"


def measured(dtype: str, what: str) -> list[float]:
    rows = json.loads(RESULTS.read_text())["rows"]
    return [row["value"] for row in rows if dtype in row["metric"] and row["metric"].endswith(what)]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", FLOAT32), ("bfloat16", BFLOAT16)])
def test_measured_differences_lie_well_within_the_limits(dtype: str, tolerance: Tolerance) -> None:
    means, kls = measured(dtype, ", mean"), measured(dtype, ", KL")
    assert len(means) == len(kls) == 6, "three models, two temperatures"
    assert max(means) < tolerance.note_diff <= tolerance.max_diff / 2
    assert 10 * max(map(abs, kls)) < tolerance.max_kl


def test_rounding_in_bf16_would_be_seen_in_a_run_of_float32() -> None:
    assert max(measured("float32", ", mean")) < FLOAT32.note_diff
    assert FLOAT32.max_diff < min(measured("bfloat16", ", mean"))
