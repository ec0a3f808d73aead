"""Measures of micro-batches, replicas and steps are joined as their metric declares."""

import math

import pytest
import torch

from agentrl.errors import DataError
from agentrl.learner.measures import MIN_SAMPLES, Measures, joined, measured, value_of
from agentrl.telemetry.metrics import REGISTRY

PARTS: list[Measures] = [
    {"loss": (1.0,), "entropy": (3.0, 2.0), "logprob_diff_max": (0.5,), "ess": (2.0, 2.0, 4.0)},
    {"loss": (4.0,), "entropy": (5.0, 6.0), "logprob_diff_max": (0.25,), "ess": (2.0, 4.0, 4.0)},
]


def test_each_reduction_joins_in_its_own_way() -> None:
    found = joined(PARTS)
    assert found["loss"] == (5.0,)
    assert value_of("loss", found["loss"], num_steps=2) == 2.5
    assert value_of("entropy", found["entropy"], num_steps=2) == 1.0
    assert value_of("logprob_diff_max", found["logprob_diff_max"], num_steps=2) == 0.5
    assert value_of("ess", found["ess"], num_steps=2) == pytest.approx(16 / (8 * 6))


def test_the_largest_is_the_same_in_every_order_and_not_a_number_is_kept() -> None:
    for name in ("logprob_diff_max", "logprob_diff_on_policy_max"):
        assert joined([{name: (1.0,)}, {name: (3.0,)}, {name: (2.0,)}]) == {name: (3.0,)}
        for parts in ([math.nan, 1.0], [1.0, math.nan]):
            (value,) = joined({name: (part,)} for part in parts)[name]
            assert math.isnan(value)


def test_nothing_measured_is_no_value() -> None:
    assert value_of("entropy", (0.0, 0.0), num_steps=1) is None
    assert value_of("ess/age_2", (0.0, 0.0, 0.0), num_steps=1) is None


@pytest.mark.parametrize("name", ["ess", "ess_sequence/age_2"])
def test_an_effective_sample_share_of_few_is_no_value(name: str) -> None:
    """However old the one sequence is, its share would be 1."""
    few = MIN_SAMPLES - 1
    assert value_of(name, (1e-6, 1e-12, 1.0), num_steps=1) is None
    assert value_of(name, (1.0, 1.0, few), num_steps=1) is None
    assert value_of(name, (1.0, 1.0, few + 1), num_steps=1) == pytest.approx(1 / MIN_SAMPLES)


def test_a_report_that_its_metric_does_not_want_is_refused() -> None:
    assert measured({"custom_mine": torch.tensor(2.0)}) == {"custom_mine": (2.0,)}
    with pytest.raises(DataError, match="1 numbers for train/entropy, whose reduction mean"):
        measured({"entropy": torch.tensor(1.0)})


def test_a_loss_reports_nothing_that_the_learner_measures() -> None:
    with pytest.raises(DataError, match="reports lr, and train/lr is measured by the learner"):
        measured({"lr": torch.tensor(1.0)})


def test_reports_of_two_widths_are_refused() -> None:
    with pytest.raises(DataError, match="reports 1 numbers for mine, then 2"):
        joined([{"mine": (1.0,)}, {"mine": (1.0, 2.0)}])


def test_what_nobody_declared_is_added() -> None:
    found = joined([{"mine": (1.0,), "pair": (1.0, 2.0)}, {"mine": (2.0,), "pair": (3.0, 2.0)}])
    assert value_of("mine", found["mine"], num_steps=2) == 1.5
    assert value_of("pair", found["pair"], num_steps=2) == 1.0


def test_metrics_that_a_loss_reports_declare_a_reduction() -> None:
    reduced = {metric.name for metric in REGISTRY if metric.reduce is not None}
    assert {"train/loss", "train/nll", "train/custom_*"} <= reduced
    assert all(name.startswith("train/") for name in reduced)
