"""Simulated runs are those of `recorded_runs.json`: see `recorded_runs` for what is kept."""

import json
from typing import Any

import pytest

from tests.property.recorded_runs import FILE, SCENARIOS, Run, run_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kept() -> Any:
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_is_the_one_that_was_kept(kept: Any, name: str) -> None:
    found, before = run_of(name), kept[name]
    assert found["fates"] == before["fates"]
    assert found["struck"] == before["struck"]
    assert _floats(found) == pytest.approx(_floats(before), rel=1e-9)


def test_runs_differ_from_each_other(kept: Any) -> None:
    """A scenario that is another one's twin would guard nothing."""
    assert len({json.dumps(run) for run in kept.values()}) == len(SCENARIOS)


def _floats(run: Run) -> dict[str, float]:
    numbers = {"end": run["end"], **run["result"]}
    return {name: float.fromhex(value) for name, value in numbers.items()}
