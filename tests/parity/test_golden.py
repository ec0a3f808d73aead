"""The learner's numbers are those of `golden.json`: see `golden` for what they are."""

import json
from typing import Any

import pytest

from tests.parity.golden import CASES, FILE, SEEDS, Numbers, numbers_of


@pytest.fixture(scope="module")
def kept() -> Any:
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", SEEDS)
def test_columns_weights_losses_and_gradients_are_those_that_were_kept(
    kept: Any, case: str, seed: int
) -> None:
    found, expected = numbers_of(case, seed), kept[case][seed]
    assert found["counts"] == expected["counts"]
    assert found["max_trained_age"] == expected["max_trained_age"]
    for step, before in zip(found["steps"], expected["steps"], strict=True):
        assert step["columns"] == before["columns"]
        assert _floats(step) == pytest.approx(_floats(before), rel=2e-6, abs=1e-7)


def test_each_configuration_has_numbers_of_its_own(kept: Any) -> None:
    """A configuration that changes nothing would guard nothing."""
    seen = {case: json.dumps(kept[case]) for case in CASES}
    assert len(set(seen.values())) == len(CASES)


def _floats(step: Numbers) -> dict[str, float]:
    return {name: float.fromhex(value) for name, value in step.items() if name != "columns"}
