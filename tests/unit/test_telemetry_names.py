"""Every fixed name that the learner reports is declared in telemetry."""

from agentrl.learner.metrics import AGE_METRICS, METRIC_NAMES
from agentrl.telemetry.metrics import REGISTRY


def test_the_learners_metrics_are_declared() -> None:
    per_age = [f"{name}/age_1" for name in AGE_METRICS]
    assert [name for name in [*METRIC_NAMES, *per_age] if REGISTRY.find(name) is None] == []
